"""The same images in ten and in a thousand clients: time and memory of a round."""

import json
import subprocess
import sys
from collections.abc import Iterator

from .measure import Line, by_turns, counted

TURNS = 3

# The demo's digits, drawn again and again and dealt out evenly; each is met once per epoch, whoever holds it.
ONE_ROUND = """
import json, resource, sys, tempfile
from dataclasses import replace
from pathlib import Path
import numpy as np
from fedcopl.config import RunConfig
from fedcopl.data.catalog import load_digits
from fedcopl.simulation.simulate import simulate

clients, images = int(sys.argv[1]), 64_000
digits = load_digits()
rows = np.random.default_rng(0).integers(0, len(digits.train), images)
train = replace(
    digits.train, images=digits.train.images[rows], labels=None, clients=np.arange(images) % clients,
    names=[f"{number}" for number in range(images)],
)
test = replace(digits.test, images=digits.test.images[:0], labels=None, clients=np.zeros(0, int), names=[])
dataset = replace(digits, train=train, test=test, clients=tuple(f"client-{number:04}" for number in range(clients)))
settings = {"rounds": 1, "train": {"epochs": 1}, "data": {"partition": "natural"}}
with tempfile.TemporaryDirectory() as folder:
    config = RunConfig.from_mapping(settings, "benchmark")
    [round] = simulate(config, Path(folder) / "run", dataset=dataset, workers=1).rounds
print(json.dumps({"seconds": sum(round.seconds_of.values()) / round.examples, "examples": round.examples,
                  "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def simulated_clients() -> Iterator[Line]:
    peaks: dict[int, float] = {}

    def seconds_an_image(clients: int) -> float:
        found = _measured(clients)
        peaks[clients] = found["peak"]
        return found["seconds"]

    measured = by_turns(lambda: seconds_an_image(10), lambda: seconds_an_image(1000), TURNS)
    few, many = measured.medians
    detail = f"{1e6 * few:.0f} and {1e6 * many:.0f} us an image trained on"
    yield Line("clients-time", "time, clients 10 -> 1,000", "10 clients", measured.ratio, 1.15, True, detail)
    detail = f"{peaks[10] / 1024:.0f} and {peaks[1000] / 1024:.0f} MiB"
    more = counted(peaks[1000] / peaks[10])
    yield Line("clients-memory", "peak memory, clients 10 -> 1,000", "10 clients", more, 1.15, True, detail)


def _measured(clients: int) -> dict[str, float]:
    out = subprocess.run([sys.executable, "-c", ONE_ROUND, str(clients)], check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(out.stdout)
    return answer
