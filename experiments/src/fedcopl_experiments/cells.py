"""One number of a table or line of a figure: which runs it is made of, and what is read from them."""

from collections.abc import Callable
from dataclasses import dataclass

from fedcopl.config import RunConfig

from .scales import Stage


@dataclass(frozen=True)
class ExperimentCell:
    """One number of a table, or one line of a figure: the runs it is the mean of, and what is read from them."""

    row: tuple[str, ...]
    column: tuple[str, ...]
    configs: tuple[RunConfig, ...]  # their seed is replaced; several: their mean
    measure: str = "final"
    block: str = ""
    baseline: RunConfig | None = None  # what a gain is counted from
    ranked: bool = True  # whether it may be marked as the best; bounds may not


Cells = Callable[[Stage], list[ExperimentCell]]


def seeded(config: RunConfig, seed: int) -> RunConfig:
    return config.model_copy(update={"seed": seed})
