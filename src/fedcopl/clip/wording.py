"""The hand-written sentences of the classes: several templates, several names for one class.

One line of text holds all of it, so that settings, results and messages carry it as they carry a single sentence:
`a photo of a {} | a drawing of a {} | cat = kitten | cat = feline`. A part with {} is a sentence, a part with = gives a
class another name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import ConfigError

BETWEEN, ALSO = "|", " = "


@dataclass(frozen=True)
class Wording:
    """Templates, {} for the class name, and further names of some classes."""

    templates: tuple[str, ...]
    others: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, text: str) -> "Wording":
        """A text without `|` is one template to the letter, blanks at its ends included."""
        parts = [part.strip() for part in text.split(BETWEEN) if part.strip()] if BETWEEN in text else [text]
        templates: list[str] = []
        others: dict[str, tuple[str, ...]] = {}
        for part in parts:
            name, also, other = part.partition(ALSO)
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
        """All sentences of each class, those of its own name first; ConfigError for a name that is no class."""
        names = [clean_name(name) for name in classes]
        for name in self.others:
            if name not in names:
                raise ConfigError(f"model.template: {name!r} is given another name, but there is no such class")
        return [self._of_one(name) for name in names]

    def _of_one(self, name: str) -> list[str]:
        called = unique([name, *self.others.get(name, ())])
        return [template.replace("{}", other) for other in called for template in self.templates]


def unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def clean_name(name: str) -> str:
    """A class name as it stands in a sentence."""
    return " ".join(name.replace("_", " ").split())
