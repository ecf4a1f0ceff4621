"""Runs small enough to work out by hand: two clients, two classes, two rounds."""

from typing import Any

from fedcopl.config import RunConfig
from fedcopl_experiments.store import StoredRun


def results_of(config: RunConfig, final: float = 0.75) -> dict[str, Any]:
    """A run that ends at `final`, from 0.5 without training, and was best in its last round."""
    three = dict.fromkeys(("macro", "weighted", "global"), final)
    rounds = [_round(0, 0.625), _round(1, final)]
    return {
        "name": config.name,
        "seed": config.seed,
        "zero_shot": dict.fromkeys(three, 0.5),
        "final": three | {"round": 1},
        "best": three | {"round": 1},
        "pseudo_label_accuracy": [0.9],
        "images_used": 7,
        "bytes_up": 200,
        "bytes_down": 400,
        "seconds": 3.0,
        "shared": ["visual"],
        "classes": ["cat", "dog"],
        "rounds": rounds,
        "refreshes": [{"round": 0, "images": 7, "selected": [[3, 1], [0, 3]], "estimated": [[3, 1], [0, 4]]}],
        "clients": [
            {"name": "north", "train": 5, "test": 2, "zero_shot": 0.5, "final": final, "true_counts": [4, 1]},
            {"name": "south", "train": 5, "test": 2, "zero_shot": 0.5, "final": final, "true_counts": [1, 4]},
        ],
        "settings": config.model_dump(),
        "versions": {"python": "3.11.0", "fedcopl": "0.1.0"},
    }


def _round(number: int, macro: float) -> dict[str, Any]:
    return {
        "round": number,
        "refreshed": number == 0,
        "loss": None if number == 0 else 0.25,
        "dropped": {},
        "bytes_up": 100,
        "macro": macro,
        "weighted": macro,
        "global": macro,
        "clients": [macro, macro],
        "recall": [macro, None],
        "drift": {"visual": {"diversity": 1.5, "cosine": 0.5}},
        "seconds": 1.0 + 2 * number,
    }


def stored(key: str = "k1", final: float = 0.75, **settings: Any) -> StoredRun:
    config = RunConfig.from_mapping(settings, "test")
    return StoredRun(
        key=key,
        status="done",
        settings=config.model_dump(),
        results=results_of(config, final),
        error=None,
        seconds=3.0,
        host="here",
        code="0.1.0+abc",
        versions={"python": "3.11.0", "fedcopl": "0.1.0"},
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
        results=None,
        error=error,
        seconds=1.0,
        host="here",
        code="0.1.0+abc",
        versions={"python": "3.11.0"},
        started="2026-01-02T03:04:05+00:00",
        finished="2026-01-02T03:04:06+00:00",
        folder=f"runs/{key}",
    )
