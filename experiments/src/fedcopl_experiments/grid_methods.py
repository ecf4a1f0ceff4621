"""The methods of the grid, read from the registry of methods."""

from dataclasses import dataclass

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError


@dataclass(frozen=True)
class GridMethod:
    """A row of the grid."""

    name: str  # as in the settings
    title: str
    trains: bool
    averages: bool  # whether it averages any array
    centralised: bool  # whether it trains on all images in one place
    needs_features_only: bool  # uses the image and class features of zero-shot CLIP, no prompts and no patches
    accepts_true_labels: bool  # as an upper bound


def grid_methods() -> list[GridMethod]:
    """Return every method that trains, once, by its first name; methods without federation come last."""
    return [method for method in _registered() if method.trains]


def untrained_methods() -> list[GridMethod]:
    """Return the methods that fit a model to each site's images without training; they use no labeler."""
    return [method for method in _registered() if not method.trains]


def _registered() -> list[GridMethod]:
    from fedcopl.methods import METHODS, choose_method  # imports torch

    first_names: dict[object, str] = {}
    for name, build in METHODS.items():
        first_names.setdefault(build, name)
    methods = {name: choose_method(RunConfig(method=name)) for name in first_names.values()}
    registered = [
        GridMethod(
            name,
            method.title,
            method.trains,
            bool(method.shared()),
            method.centralised,
            # Neither images nor classes are encoded again: `caches_frozen`, and class features that use no array.
            method.caches_frozen and not method.class_arrays,
            _accepts_true_labels(name),
        )
        for name, method in methods.items()
        if method.trains or method.personal_without_training
    ]
    return sorted(registered, key=lambda method: (method.centralised, not method.averages))


def _accepts_true_labels(name: str) -> bool:
    """Return whether a method has the option `labels=truth`."""
    from fedcopl.methods import choose_method

    try:
        choose_method(RunConfig(method=name, options={"labels": "truth"}))
    except ConfigError:
        return False
    return True
