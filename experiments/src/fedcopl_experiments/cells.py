"""Cells: one number of a table or one line of a figure, with the runs it is computed from."""

from collections.abc import Callable
from dataclasses import dataclass

from fedcopl.config import RunConfig

from .scales import ExperimentSetup


@dataclass(frozen=True)
class ExperimentCell:
    """One number of a table, or one line of a figure."""

    row: tuple[str, ...]
    column: tuple[str, ...]
    configs: tuple[RunConfig, ...]  # their seed is replaced; of several configurations the mean is shown
    measure: str = "final"
    block: str = ""
    baseline: RunConfig | None = None  # the difference to it is shown as the gain
    ranked: bool = True  # whether it may be marked as the best; upper bounds are not
    spread: bool = True  # whether the standard deviation over the seeds is shown


Cells = Callable[[ExperimentSetup], list[ExperimentCell]]


def seeded(config: RunConfig, seed: int) -> RunConfig:
    """Return the settings with another seed."""
    return config.model_copy(update={"seed": seed})
