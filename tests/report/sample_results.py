"""Made-up runs in the format of results.json, which tests change and then read."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedcopl.algorithm.allocate import quota
from fedcopl.config import RunConfig
from fedcopl.run.record import Outcome, read_outcome

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
KINDS = ("macro", "weighted", "global")


def outcome_of(results: dict[str, Any]) -> Outcome:
    """The same as types; nothing of it may be damaged."""
    return read_outcome(results)


def sample_outcome(**options: Any) -> Outcome:
    return outcome_of(sample_results(**options))


def sample_results(
    *,
    clients: int = 5,
    classes: tuple[str, ...] = DIGITS,
    rounds: int = 10,
    every: int = 5,
    labelled: bool = True,
    name: str = "demo",
    seed: int = 1,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Skewed clients, a zero-shot model with favourite classes, and a training that helps most clients."""
    rng = np.random.default_rng(6 + seed)
    names = [f"client-{number}" for number in range(clients)]
    sizes = rng.integers(150, 330, clients)
    true = rng.multinomial(sizes, rng.dirichlet([0.3] * len(classes), clients)).astype(np.int64)
    zero_shot = rng.uniform(0.7, 0.9, clients)
    recall = np.linspace(0.95, 0.45, len(classes))
    records = [_round(rng, r, every, zero_shot + 0.06 * (1 - 0.8**r) - 0.01) for r in range(rounds)]
    for r, record in enumerate(records):
        record["recall"] = (recall + 0.05 * (1 - 0.8**r)).tolist()
    refreshes = [_refresh(rng, r, r // every, true) for r in range(0, rounds, every)]
    for record in records:
        if record["refreshed"]:
            record["pseudo_label_accuracy"] = refreshes[record["round"] // every]["pseudo_label_accuracy"]
    best = max(records, key=lambda record: record["macro"])
    chosen = {"name": "x", "seed": seed, "rounds": rounds, "data": {"clients": clients}} | (settings or {})
    config = RunConfig.from_mapping(chosen, "test")
    results = {
        "name": name,
        "seed": seed,
        "zero_shot": _three(zero_shot) | {"recall": recall.tolist()},
        "final": {kind: records[-1][kind] for kind in KINDS} | {"round": rounds - 1},
        "best": {kind: best[kind] for kind in KINDS} | {"round": best["round"]},
        "pseudo_label_accuracy": [refresh["pseudo_label_accuracy"] for refresh in refreshes],
        "images_used": refreshes[-1]["images"],
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records),
        "seconds": records[-1]["seconds"],
        "trains": config.method != "zeroshot",
        "centralised": config.method == "central",
        "shared": ["visual"],
        "classes": list(classes),
        "images_left_out": 0,
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
        "labelling": _labelling(r) if r % every == 0 else None,
        "dropped": {},
        "clients": wobbly.tolist(),
        "drift": {
            "visual": {"diversity": 0.6 + 0.1 * r, "cosine": 0.7 + 0.01 * r},
            "text": {"diversity": 9.0 * 1.8**r, "cosine": 1.02},
        },
        "seconds_of": {"estimate": 0.1, "select": 0.0, "train": 2.9, "evaluate": 0.4},
        "seconds_per_step": 0.02,
        "seconds": 4.1 * (r + 1),
    } | _three(wobbly)


def _labelling(r: int) -> dict[str, int]:
    before = r > 0
    return {"images": 1198, "chosen": 590 + r, "compared": 1198 * before, "unchanged": 1100 * before}


def _refresh(rng: np.random.Generator, r: int, index: int, true: np.ndarray) -> dict[str, Any]:
    favour = np.linspace(0.75, 0.2, true.shape[1])
    estimated = rng.binomial(true, favour)
    allocated = quota(estimated, estimated.sum(axis=0), len(estimated), refresh_index=index)
    selected = np.minimum(allocated, rng.binomial(true, 0.9))
    return {
        "round": r,
        "pseudo_label_accuracy": 1 - 0.095 * 0.87**index,
        "coverage": None,
        "mean_set_size": None,
        "distribution_similarity": 0.95 + 0.01 * index,
        "images": int(selected.sum()),
        "estimated": estimated.tolist(),
        "allocated": allocated.tolist(),
        "selected": selected.tolist(),
    }


def _clients(names: list[str], true: np.ndarray, zero_shot: np.ndarray, final: list[float]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "train": int(true[k].sum()),
            "test": int(true[k].sum()) // 2,
            "zero_shot": float(zero_shot[k]),
            "final": final[k],
            "true_counts": true[k].tolist(),
        }
        for k, name in enumerate(names)
    ]


def without_labels(results: dict[str, Any]) -> dict[str, Any]:
    """The same run on sites that have no labels at all."""
    nothing = dict.fromkeys(KINDS)
    last = results["final"]["round"]
    rounds = [record | nothing | {"clients": [], "recall": None} for record in results["rounds"]]
    for record in rounds:
        record |= {"pseudo_label_accuracy": None} if record["refreshed"] else {}
    unknown = {"zero_shot": None, "final": None, "true_counts": None, "test": 0}
    return results | {
        "zero_shot": nothing | {"recall": None},
        "final": nothing | {"round": last},
        "best": nothing | {"round": last},
        "pseudo_label_accuracy": [None] * len(results["refreshes"]),
        "rounds": rounds,
        "refreshes": [
            refresh | {"pseudo_label_accuracy": None, "distribution_similarity": None}
            for refresh in results["refreshes"]
        ],
        "clients": [client | unknown for client in results["clients"]],
    }


def so_far(results: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The same run after only so many rounds."""
    done = results["rounds"][:rounds]
    last = {kind: done[-1][kind] for kind in (*KINDS, "round")}
    refreshes = [refresh for refresh in results["refreshes"] if refresh["round"] < rounds]
    return results | {
        "rounds": done,
        "refreshes": refreshes,
        "final": last,
        "best": last,
        "seconds": done[-1]["seconds"],
    }


def of_sites(results: dict[str, Any]) -> dict[str, Any]:
    """The same run as the server of a deployment records it: names, bytes, loss, and accuracies that sites report."""
    known = ("round", "refreshed", "participants", "examples", "loss", "bytes_up", "bytes_down", "dropped", "labelling")
    more = ("kept_old_prompt", "macro", "weighted", "clients", "seconds")
    rounds = [{key: record[key] for key in (*known, *more)} | {"global": None} for record in results["rounds"]]
    scores = {kind: results["zero_shot"][kind] for kind in ("macro", "weighted")}
    last = {kind: rounds[-1][kind] for kind in ("macro", "weighted", "round")}
    kept = ("name", "seed", "classes", "bytes_up", "bytes_down", "seconds", "settings")
    sites = [client["name"] for client in results["clients"]]
    clients = [{"name": name} for name in sites]
    measured = {"zero_shot": scores, "final": last, "rounds": rounds}
    return {key: results[key] for key in kept} | {"sites": sites, "clients": clients, **measured}


def write_run(folder: Path, results: dict[str, Any], name: str = "results.json") -> Path:
    """A folder that holds nothing but this outcome."""
    folder.mkdir(parents=True)
    (folder / name).write_text(json.dumps(results), encoding="utf-8")
    return folder
