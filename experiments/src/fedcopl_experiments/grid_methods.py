"""The methods of our own grid, as they declare themselves: a new one is in it without being named here."""

from dataclasses import dataclass

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError


@dataclass(frozen=True)
class GridMethod:
    """A row of the grid."""

    name: str  # as in the settings
    title: str
    averages: bool  # anything at all
    pools: bool
    can_know_truth: bool  # may be trained on true labels instead: an upper bound


def grid_methods() -> list[GridMethod]:
    """Every method that trains anything, once, by its first name; what is no federation stands last."""
    from fedcopl.methods import METHODS, choose_method  # brings torch

    first_names: dict[object, str] = {}
    for name, build in METHODS.items():
        first_names.setdefault(build, name)
    methods = {name: choose_method(RunConfig(method=name)) for name in first_names.values()}
    declared = [
        GridMethod(name, method.title, bool(method.shared()), method.pools, _can_know_truth(name))
        for name, method in methods.items()
        if method.trains
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
