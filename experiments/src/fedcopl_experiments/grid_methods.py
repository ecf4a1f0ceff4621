"""The methods of our own grid, as they declare themselves: a new one is in it without being named here."""

from dataclasses import dataclass
from typing import Any

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
    """Every method that trains on pseudo labels, once, by its first name; what is no federation stands last."""
    from fedcopl.methods import METHODS  # brings torch

    first_names: dict[object, str] = {}
    for name, build in METHODS.items():
        first_names.setdefault(build, name)
    methods = [_declared(name) for name in first_names.values() if _trains_on_labels(name)]
    return sorted(methods, key=lambda method: (method.pools, not method.averages))


def _declared(name: str) -> GridMethod:
    from fedcopl.methods import choose_method

    method = choose_method(RunConfig(method=name))
    truth = _accepts(name, options={"labels": "truth"})
    return GridMethod(name, method.title, bool(method.shared()), method.pools, truth)


def _trains_on_labels(name: str) -> bool:
    """A method to which the labeler makes no difference refuses to be given one."""
    return _accepts(name, labeler="fpl")


def _accepts(name: str, **settings: Any) -> bool:
    from fedcopl.methods import choose_method

    try:
        choose_method(RunConfig(method=name, **settings))
    except ConfigError:
        return False
    return True
