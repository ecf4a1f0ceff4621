"""Implementations by name, which plug-ins can add to."""

import difflib
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from .errors import ConfigError

PLUGINS_VARIABLE = "FEDCOPL_PLUGINS"  # plug-in files that child processes load too, separated as in PATH
Implementation = TypeVar("Implementation")


class Registry(MutableMapping[str, Implementation], Generic[Implementation]):
    """A mapping from names to implementations that other packages can extend.

    Args:
        kind: What is registered, as the setting is called: "method" or "labeler".
        builtin: The implementations of this package.

    >>> registry = Registry("method", {"mean": sum})
    >>> registry.add("max", max)
    >>> list(registry), registry["max"]([1, 3, 2])
    (['mean', 'max'], 3)
    """

    def __init__(self, kind: str, builtin: Mapping[str, Implementation]):
        self.kind, self._known = kind, dict(builtin)

    def add(self, name: str, implementation: Implementation) -> None:
        """Register an implementation from outside; a name can be used again only for the same plug-in."""
        if name in self._known and not _same_origin(self._known[name], implementation):
            raise ConfigError(f"plugin: there is already a {self.kind} called {name!r}; choose another name")
        self._known[name] = implementation

    def find(self, name: str) -> Implementation:
        """Return the implementation of a setting's value, also by entry point.

        Raises:
            ConfigError: There is none; the message names those that are known.
        """
        if name not in self._known:
            for entry in entry_points(group=f"fedcopl.{self.kind}s", name=name):
                self._known[name] = entry.load()
        if name not in self._known:
            near = difflib.get_close_matches(name, self._known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            known = f"{self.kind}: unknown {self.kind} {name!r} (known: {', '.join(self._known)})"
            raise ConfigError(f"{known}; {hint}if it comes from a file, add --plugin FILE.py")
        return self._known[name]

    def __getitem__(self, name: str) -> Implementation:
        return self._known[name]

    def __setitem__(self, name: str, implementation: Implementation) -> None:
        self._known[name] = implementation

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def _same_origin(one: object, other: object) -> bool:
    """Whether both were defined at the same place of the same plug-in file, which was loaded twice."""
    names = [(getattr(it, "__module__", None), getattr(it, "__qualname__", None)) for it in (one, other)]
    return names[0] == names[1] and str(names[0][0]).startswith("fedcopl_plugin_")
