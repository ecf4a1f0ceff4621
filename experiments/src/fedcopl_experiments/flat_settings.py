"""Conversion of settings between sections and flat `section.key` names."""

from collections.abc import Mapping
from typing import Any


def flat(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested sections to `section.key`."""
    pairs: dict[str, Any] = {}
    for name, value in sections.items():
        if isinstance(value, Mapping):
            pairs |= {f"{name}.{inner}": leaf for inner, leaf in flat(value).items()}
        else:
            pairs[name] = value
    return pairs


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Group flat settings into sections; the inverse of `flat`."""
    sections: dict[str, Any] = {}
    for key, value in settings.items():
        section, dot, leaf = key.partition(".")
        if dot:
            sections.setdefault(section, {})[leaf] = value
        else:
            sections[key] = value
    return sections
