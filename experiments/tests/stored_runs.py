"""Stored runs with two clients, two classes and two rounds, for calculations by hand."""

from typing import Any

from fedcopl.config import RunConfig
from fedcopl.run.record import ClientRecord, Drift, Measured, Outcome, RefreshRecord, RoundRecord
from fedcopl_experiments.store import StoredRun

VERSIONS = {"python": "3.11.0", "fedcopl": "0.1.0"}


def outcome_of(config: RunConfig, final: float | None = 0.75) -> Outcome:
    """Return a run with an accuracy of 0.5 before training and `final` after the last, best round."""
    return Outcome(
        name=config.name,
        seed=config.seed,
        zero_shot=Measured(macro=0.5, weighted=0.5, everywhere=0.5),
        seconds=3.0,
        method="FedCoPL",
        shared=("visual",),
        classes=("cat", "dog"),
        rounds=(_round(0, 0.625), _round(1, final)),
        refreshes=(
            RefreshRecord(
                round=0,
                images=7,
                pseudo_label_accuracy=0.9,
                estimated=((3, 1), (0, 4)),
                allocated=((3, 1), (0, 3)),
                selected=((3, 1), (0, 3)),
            ),
        ),
        clients=(
            ClientRecord(name="north", train=5, test=2, zero_shot=0.5, final=final, true_counts=(4, 1)),
            ClientRecord(name="south", train=5, test=2, zero_shot=0.5, final=final, true_counts=(1, 4)),
        ),
        settings=config.model_dump(),
        versions=VERSIONS,
    )


def _round(number: int, macro: float | None) -> RoundRecord:
    return RoundRecord(
        round=number,
        refreshed=number == 0,
        loss=None if number == 0 else 0.25,
        bytes_up=100,
        bytes_down=200,
        macro=macro,
        weighted=macro,
        everywhere=macro,
        clients=(macro, macro),
        recall=(macro, None),
        drift={"visual": Drift(diversity=1.5, cosine=0.5)},
        seconds=1.0 + 2 * number,
    )


def stored(key: str = "k1", final: float = 0.75, **settings: Any) -> StoredRun:
    config = RunConfig.from_mapping(settings, "test")
    return StoredRun(
        key=key,
        status="done",
        settings=config.model_dump(),
        outcome=outcome_of(config, final),
        error=None,
        seconds=3.0,
        host="here",
        code="0.1.0+abc",
        versions=VERSIONS,
        started="2026-01-02T03:04:05+00:00",
        finished="2026-01-02T03:05:00+00:00",
        folder=f"runs/{key}",
    )


def failed(key: str = "k1", error: str = "photos: there is no such folder") -> StoredRun:
    config = RunConfig()
    return StoredRun(
        key=key,
        status="failed",
        settings=config.model_dump(),
        outcome=None,
        error=error,
        seconds=1.0,
        host="here",
        code="0.1.0+abc",
        versions={"python": "3.11.0"},
        started="2026-01-02T03:04:05+00:00",
        finished="2026-01-02T03:04:06+00:00",
        folder=f"runs/{key}",
    )
