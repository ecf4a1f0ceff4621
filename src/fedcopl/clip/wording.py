"""Zero-shot sentences of the classes: several templates, and synonyms of class names.

They are written in one line: `a photo of a {} | a drawing of a {} | cat = kitten | cat = feline`: a part with {} is
a template, a part with = a synonym.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ConfigError

_BETWEEN, _ALSO = "|", " = "


@dataclass(frozen=True)
class Wording:
    """Templates, {} for the class name, and synonyms of some classes."""

    templates: tuple[str, ...]
    others: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, text: str) -> "Wording":
        """Parse a text; without `|` it is one template, leading and trailing blanks included."""
        parts = [part.strip() for part in text.split(_BETWEEN) if part.strip()] if _BETWEEN in text else [text]
        templates: list[str] = []
        others: dict[str, tuple[str, ...]] = {}
        for part in parts:
            name, also, other = part.partition(_ALSO)
            if "{}" in part:
                templates.append(part)
            elif also:
                others[name.strip()] = (*others.get(name.strip(), ()), other.strip())
            else:
                raise ConfigError(f"model.template: must have {{}} where the class name goes (given: {part!r})")
        if not templates:
            raise ConfigError(f"model.template: has no sentence with {{}} for the class name (given: {text!r})")
        return cls(tuple(templates), others)

    def sentences(self, classes: Sequence[str]) -> list[list[str]]:
        """Return all sentences of each class, those of its own name first; raises ConfigError for an unknown class."""
        names = [clean_name(name) for name in classes]
        for name in self.others:
            if name not in names:
                raise ConfigError(f"model.template: {name!r} is given another name, but there is no such class")
        synonyms = [dict.fromkeys([name, *self.others.get(name, ())]) for name in names]
        return [
            [template.replace("{}", own) for own in all_names for template in self.templates] for all_names in synonyms
        ]


def clean_name(name: str) -> str:
    """Return a class name as it is written in a sentence."""
    return " ".join(name.replace("_", " ").split())
