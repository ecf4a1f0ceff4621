"""The methods of our own grid, as they declare themselves: a new one is in it without being named here."""

from dataclasses import dataclass

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError


@dataclass(frozen=True)
class GridMethod:
    """A row of the grid."""

    name: str  # as in the settings
    title: str
    trains: bool
    averages: bool  # anything at all
    pools: bool
    can_know_truth: bool  # may be trained on true labels instead: an upper bound


def grid_methods() -> list[GridMethod]:
    """Every method that trains anything, once, by its first name; what is no federation stands last."""
    return [method for method in _declared() if method.trains]


def lone_methods() -> list[GridMethod]:
    """Those that train nothing, and in which each site still answers in a way of its own: they need no labeler."""
    return [method for method in _declared() if not method.trains]


def _declared() -> list[GridMethod]:
    from fedcopl.methods import METHODS, choose_method  # brings torch

    first_names: dict[object, str] = {}
    for name, build in METHODS.items():
        first_names.setdefault(build, name)
    methods = {name: choose_method(RunConfig(method=name)) for name in first_names.values()}
    declared = [
        GridMethod(name, method.title, method.trains, bool(method.shared()), method.pools, _can_know_truth(name))
        for name, method in methods.items()
        if method.trains or method.personal_without_training
    ]
    return sorted(declared, key=lambda method: (method.pools, not method.averages))


def _can_know_truth(name: str) -> bool:
    """A method without this option refuses it."""
    from fedcopl.methods import choose_method

    try:
        choose_method(RunConfig(method=name, options={"labels": "truth"}))
    except ConfigError:
        return False
    return True
