"""Settings in sections, and the same as one list of `section.key`."""

from collections.abc import Mapping
from typing import Any


def flat(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Sections to `section.key`, as deep as they go."""
    pairs: dict[str, Any] = {}
    for name, value in sections.items():
        if isinstance(value, Mapping):
            pairs |= {f"{name}.{inner}": leaf for inner, leaf in flat(value).items()}
        else:
            pairs[name] = value
    return pairs


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    sections: dict[str, Any] = {}
    for key, value in settings.items():
        section, dot, leaf = key.partition(".")
        if dot:
            sections.setdefault(section, {})[leaf] = value
        else:
            sections[key] = value
    return sections
