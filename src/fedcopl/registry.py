"""Implementations by name, which plug-ins can add to."""

import difflib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TypeVar

from .errors import ConfigError

PLUGINS_VARIABLE = "FEDCOPL_PLUGINS"  # environment variable with plug-in files, separated as in PATH
_Implementation = TypeVar("_Implementation")


class Registry(dict[str, _Implementation]):
    """A mapping from names to implementations, which plug-ins can extend.

    Args:
        kind: The setting that selects an implementation: "method" or "labeler".
        builtin: The implementations of this package.

    >>> registry = Registry("method", {"mean": sum})
    >>> registry.add("max", max)
    >>> list(registry), registry["max"]([1, 3, 2])
    (['mean', 'max'], 3)
    """

    def __init__(self, kind: str, builtin: Mapping[str, _Implementation]):
        super().__init__(builtin)
        self.kind = kind

    def add(self, name: str, implementation: _Implementation) -> None:
        """Register an implementation of a plug-in; a name can be replaced only by the same definition."""
        if name in self and not _same_origin(self[name], implementation):
            raise ConfigError(f"plugin: there is already a {self.kind} called {name!r}; choose another name")
        self[name] = implementation

    def find(self, name: str) -> _Implementation:
        """Return the registered implementation of this name, or load it from an entry point.

        Raises:
            ConfigError: The name is unknown; the message lists the known ones.
        """
        if name not in self:
            for entry in entry_points(group=f"fedcopl.{self.kind}s", name=name):
                self[name] = entry.load()
        if name not in self:
            hint = "".join(f"did you mean {match}? " for match in difflib.get_close_matches(name, self, n=1))
            known = f"{self.kind}: unknown {self.kind} {name!r} (known: {', '.join(self)})"
            raise ConfigError(f"{known}; {hint}if it comes from a file, add --plugin FILE.py")
        return self[name]


def _same_origin(one: object, other: object) -> bool:
    """Return whether two implementations are the same definition of a plug-in file that was loaded twice."""
    names = [(getattr(item, "__module__", None), getattr(item, "__qualname__", None)) for item in (one, other)]
    return names[0] == names[1] and str(names[0][0]).startswith("fedcopl_plugin_")
