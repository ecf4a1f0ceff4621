"""Zero-shot sentences of the classes from templates and synonyms of class names.

Both are given in one line: in `a photo of a {} | a drawing of a {} | cat = kitten | cat = feline`, parts with {} are
templates and parts with = are synonyms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ConfigError

_SEPARATOR, _EQUALS = "|", " = "


@dataclass(frozen=True)
class Wording:
    """Templates with {} for the class name, and synonyms by class name."""

    templates: tuple[str, ...]
    synonyms: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, text: str) -> "Wording":
        """Parse a text; without `|` it is one template with its leading and trailing spaces."""
        parts = [part.strip() for part in text.split(_SEPARATOR) if part.strip()] if _SEPARATOR in text else [text]
        templates: list[str] = []
        synonyms: dict[str, tuple[str, ...]] = {}
        for part in parts:
            name, equals, synonym = part.partition(_EQUALS)
            if "{}" in part:
                templates.append(part)
            elif equals:
                synonyms[name.strip()] = (*synonyms.get(name.strip(), ()), synonym.strip())
            else:
                raise ConfigError(f"model.template: must have {{}} where the class name goes (given: {part!r})")
        if not templates:
            raise ConfigError(f"model.template: has no sentence with {{}} for the class name (given: {text!r})")
        return cls(tuple(templates), synonyms)

    def sentences(self, classes: Sequence[str]) -> list[list[str]]:
        """Return all sentences of each class, those of its name before those of its synonyms.

        Raises:
            ConfigError: A synonym is given for a class that does not exist.
        """
        classes = [clean_name(name) for name in classes]
        for name in self.synonyms:
            if name not in classes:
                raise ConfigError(f"model.template: has a synonym for {name!r}, which is not one of the classes")
        names_of = [dict.fromkeys([name, *self.synonyms.get(name, ())]) for name in classes]
        return [[template.replace("{}", name) for name in names for template in self.templates] for names in names_of]


def clean_name(name: str) -> str:
    """Return a class name as it is written in a sentence."""
    return " ".join(name.replace("_", " ").split())
