"""A run that never was, in the exact shape of `fedcopl.engines.simulation.results`."""

from typing import Any

import numpy as np

from fedcopl.config import RunConfig
from fedcopl.core.allocate import allocate

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
KINDS = ("macro", "weighted", "global")


def sample_results(
    *,
    clients: int = 5,
    classes: tuple[str, ...] = DIGITS,
    rounds: int = 10,
    every: int = 5,
    labelled: bool = True,
    name: str = "demo",
) -> dict[str, Any]:
    """Skewed clients, a zero-shot model with favourite classes, and a training that helps most clients."""
    rng = np.random.default_rng(7)
    names = [f"client-{number}" for number in range(clients)]
    sizes = rng.integers(150, 330, clients)
    true = rng.multinomial(sizes, rng.dirichlet([0.3] * len(classes), clients)).astype(np.int64)
    zero_shot = rng.uniform(0.7, 0.9, clients)
    records = [_round(rng, r, every, zero_shot + 0.06 * (1 - 0.8**r) - 0.01) for r in range(rounds)]
    refreshes = [_refresh(rng, r, r // every, true) for r in range(0, rounds, every)]
    for record in records:
        if record["refreshed"]:
            record["pseudo_label_accuracy"] = refreshes[record["round"] // every]["pseudo_label_accuracy"]
    best = max(records, key=lambda record: record["macro"])
    config = RunConfig.from_mapping({"name": "x", "rounds": rounds, "data": {"clients": clients}}, "test")
    results = {
        "name": name,
        "seed": 1,
        "zero_shot": _three(zero_shot),
        "final": {kind: records[-1][kind] for kind in KINDS} | {"round": rounds - 1},
        "best": {kind: best[kind] for kind in KINDS} | {"round": best["round"]},
        "pseudo_label_accuracy": [refresh["pseudo_label_accuracy"] for refresh in refreshes],
        "images_used": refreshes[-1]["images"],
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records),
        "seconds": records[-1]["seconds"],
        "classes": list(classes),
        "rounds": records,
        "refreshes": refreshes,
        "clients": _clients(names, true, zero_shot, records[-1]["clients"]),
        "settings": config.model_dump() | {"name": name},
        "versions": {"python": "3.11.9", "fedcopl": "0.1.0", "torch": "2.8.0", "numpy": "2.1.0"},
    }
    return results if labelled else without_labels(results)


def _three(accuracies: np.ndarray) -> dict[str, float]:
    mean = float(accuracies.mean())
    return {"macro": mean, "weighted": mean - 0.013, "global": mean - 0.031}


def _round(rng: np.random.Generator, r: int, every: int, accuracies: np.ndarray) -> dict[str, Any]:
    wobbly = np.clip(accuracies + rng.normal(0, 0.012, len(accuracies)), 0, 1)
    return {
        "round": r,
        "refreshed": r % every == 0,
        "participants": len(accuracies),
        "examples": 590 + r,
        "loss": 0.9 * 0.83**r + 0.08,
        "bytes_up": 38_400 * len(accuracies),
        "bytes_down": 76_880 * len(accuracies),
        "kept_old_prompt": False,
        "dropped": {},
        "clients": wobbly.tolist(),
        "seconds": 4.1 * (r + 1),
    } | _three(wobbly)


def _refresh(rng: np.random.Generator, r: int, index: int, true: np.ndarray) -> dict[str, Any]:
    favour = np.linspace(0.75, 0.2, true.shape[1])
    estimated = rng.binomial(true, favour)
    allocated = allocate(estimated, refresh_index=index)
    selected = np.minimum(allocated, rng.binomial(true, 0.9))
    return {
        "round": r,
        "pseudo_label_accuracy": 1 - 0.095 * 0.87**index,
        "images": int(selected.sum()),
        "estimated": estimated.tolist(),
        "allocated": allocated.tolist(),
        "selected": selected.tolist(),
    }


def _clients(names: list[str], true: np.ndarray, zero_shot: np.ndarray, final: list[float]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "train": int(true[place].sum()),
            "test": int(true[place].sum()) // 2,
            "zero_shot": float(zero_shot[place]),
            "final": final[place],
            "true_counts": true[place].tolist(),
        }
        for place, name in enumerate(names)
    ]


def without_labels(results: dict[str, Any]) -> dict[str, Any]:
    """The same run on sites that have no labels at all."""
    nothing = dict.fromkeys(KINDS)
    last = results["final"]["round"]
    rounds = [record | nothing | {"clients": []} for record in results["rounds"]]
    for record in rounds:
        record |= {"pseudo_label_accuracy": None} if record["refreshed"] else {}
    unknown = {"zero_shot": None, "final": None, "true_counts": None, "test": 0}
    return results | {
        "zero_shot": nothing,
        "final": nothing | {"round": last},
        "best": nothing | {"round": last},
        "pseudo_label_accuracy": [None] * len(results["refreshes"]),
        "rounds": rounds,
        "refreshes": [refresh | {"pseudo_label_accuracy": None} for refresh in results["refreshes"]],
        "clients": [client | unknown for client in results["clients"]],
    }
