"""A simulation with two worker processes compared with one: time and memory."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .against_transformers import save_random_clip
from .measure import Line, measure_alternately, summary

TURNS = 3
RUN = [sys.executable, "-m", "fedcopl", "run", "--json"]

# Samples the memory of all processes of a run, with shared pages counted once, and prints the maximum.
MEMORY_OF_RUN = """
import json, sys, threading, time
from pathlib import Path
from multiprocessing import active_children
from fedcopl.cli import main

def memory(process):
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

def watch():
    while True:
        try:
            processes = ["self", *(child.pid for child in active_children())]
            highest[0] = max(highest[0], sum(map(memory, processes)))
        except (OSError, StopIteration):
            pass
        time.sleep(0.1)

highest = [0]
threading.Thread(target=watch, daemon=True).start()
sys.argv = ["fedcopl", "run", "--json", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps(highest[0]), file=sys.stderr)
"""

# As published, because with random weights the default settings would not train on the unreliable labels. Few images,
# because each is encoded several times besides the training that is measured.
ONE_STEP_EACH = """
import sys, tempfile
from dataclasses import replace
from pathlib import Path
import numpy as np
from fedcopl.config import RunConfig, override
from fedcopl.data.catalog import load_digits
from fedcopl.config import as_published
from fedcopl.simulation.simulate import simulate

backbone, workers, threads = sys.argv[1], *map(int, sys.argv[2:])
digits = load_digits()
train = replace(digits.train, images=digits.train.images[:160], labels=None, clients=np.arange(160) % 4)
test = replace(digits.test, images=digits.test.images[:0], labels=None, clients=np.zeros(0, int), names=[])
train = replace(train, names=train.names[:160])
dataset = replace(digits, train=train, test=test, clients=tuple("abcd"))
pairs = ["rounds=1", "epochs=2", "partition=natural", "labels.entropy_filter=false", "labels.confidence_filter=false",
         "per_class=4", "labeler=fpl", f"backbone={backbone}", f"threads={threads}"]
config = RunConfig.from_mapping(override(as_published(), pairs), "benchmark")
with tempfile.TemporaryDirectory() as folder:
    [round] = simulate(config, Path(folder) / "run", dataset=dataset, workers=workers).rounds
print(round.seconds_of["train"])
"""


def workers() -> Iterator[Line]:
    measured = measure_alternately(partial(_seconds, 2), partial(_seconds, 1), TURNS)
    detail = f"whole command, {measured.in_seconds}"
    yield Line("workers-demo", "the demo, 2 workers", "1 worker", measured.ratio, 1.5, detail=detail)
    memory = summary([_memory(2) / _memory(1) for _ in range(TURNS)])
    yield Line("workers-memory", "memory of the demo, 2 workers", "1 worker", memory, 1.3, True)
    with tempfile.TemporaryDirectory() as name:
        save_random_clip(Path(name))
        two_workers, two_threads = partial(_training, name, 2, 1), partial(_training, name, 1, 2)
        measured = measure_alternately(two_workers, two_threads, TURNS)
    detail = f"training alone, {measured.in_seconds}"
    yield Line("workers-vit", "ViT-B/32, 2 workers", "1 with 2 threads", measured.ratio, 1.2, detail=detail)


def _seconds(workers: int) -> float:
    """Return the wall time of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*RUN, "--workers", str(workers), "--out", f"{folder}/run"]
        code = "import subprocess, sys, time; t = time.perf_counter(); subprocess.run(sys.argv[1:], check=True, "
        code += "capture_output=True); print(time.perf_counter() - t)"
        return float(subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True).stdout)


def _memory(workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", MEMORY_OF_RUN, "rounds=2", "--workers", str(workers), "--out", f"{folder}/run"]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()[-1])


def _training(backbone: str, workers: int, threads: int) -> float:
    """Return the wall time in seconds of training all clients."""
    command = [sys.executable, "-c", ONE_STEP_EACH, backbone, str(workers), str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
