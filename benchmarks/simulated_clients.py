"""Time and memory of a first round over the same images, divided among 10 and among 1,000 clients; and among 10,000."""

import json
import subprocess
import sys
from collections.abc import Iterator

from .measure import Line, counted, measure_alternately

TURNS = 3
IMAGES, MANY_IMAGES = 64_000, 100_000
TWO_MINUTES = 120.0

# The demo's digits, sampled with replacement; each client has the same number. The time is that of the whole round: the
# clients' work and the server's.
ONE_ROUND = """
import json, resource, sys, tempfile, time
from dataclasses import replace
from pathlib import Path
import numpy as np
from fedcopl.config import RunConfig
from fedcopl.data.catalog import load_digits
from fedcopl.data.images import ImageArrays
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation.simulate import simulate

class Clock(ProgressReporter):
    def started(self, config, clients, done):
        self.began = time.perf_counter()
    def round_done(self, record):
        self.took = time.perf_counter() - self.began

clients, images, workers = map(int, sys.argv[1:])
digits, clock = load_digits(), Clock()
rows = np.random.default_rng(0).integers(0, len(digits.train), images)
dots = np.stack([np.asarray(image) for image in digits.train.images])[rows]
train = replace(
    digits.train, images=ImageArrays(np.repeat(dots[..., None], 3, axis=3)), labels=None,
    clients=np.arange(images) % clients, names=[f"{number}" for number in range(images)],
)
test = replace(digits.test, images=digits.test.images[:0], labels=None, clients=np.zeros(0, int), names=[])
dataset = replace(digits, train=train, test=test, clients=tuple(f"client-{number:05}" for number in range(clients)))
settings = {"rounds": 1, "train": {"epochs": 1}, "data": {"partition": "natural"}}
with tempfile.TemporaryDirectory() as folder:
    config = RunConfig.from_mapping(settings, "benchmark")
    [round] = simulate(config, Path(folder) / "run", dataset=dataset, workers=workers, progress=clock).rounds
peaks = [resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"seconds": clock.took, "peak": peaks[0], "peak of a worker": peaks[1]}))
"""


def simulated_clients() -> Iterator[Line]:
    peaks: dict[int, float] = {}

    def seconds_of_a_round(clients: int) -> float:
        measured = _measured(clients, IMAGES, workers=1)
        peaks[clients] = measured["peak"]
        return measured["seconds"]

    measured = measure_alternately(lambda: seconds_of_a_round(10), lambda: seconds_of_a_round(1000), TURNS)
    few, many = (1e6 * seconds / IMAGES for seconds in measured.medians)
    detail = f"{few:.0f} and {many:.0f} us per image, of the whole round"
    yield Line("clients-time", "time, clients 10 -> 1,000", "10 clients", measured.ratio, 2.0, True, detail)
    detail = f"{peaks[10] / 1024:.0f} and {peaks[1000] / 1024:.0f} MiB"
    more = counted(peaks[1000] / peaks[10])
    yield Line("clients-memory", "peak memory, clients 10 -> 1,000", "10 clients", more, 1.15, True, detail)


def ten_thousand_clients() -> Iterator[Line]:
    """A first round, with all that the priors ask, on two processes."""
    found: dict[str, float] = {}

    def seconds_of_a_round() -> float:
        found.update(_measured(10_000, MANY_IMAGES, workers=2))
        return found["seconds"]

    measured = measure_alternately(lambda: TWO_MINUTES, seconds_of_a_round, 1)
    detail = (
        f"{found['seconds']:.0f} s; {found['peak'] / 1024:.0f} MiB, a worker {found['peak of a worker'] / 1024:.0f} MiB"
    )
    what = "a round, 10,000 clients with 10 images"
    yield Line("clients-ten-thousand", what, "two minutes", measured.ratio, 1.0, True, detail)


def _measured(clients: int, images: int, workers: int) -> dict[str, float]:
    command = [sys.executable, "-c", ONE_ROUND, *map(str, (clients, images, workers))]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(out.stdout)
    return answer
