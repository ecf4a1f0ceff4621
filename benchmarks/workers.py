"""A simulation's clients shared out among two processes, against one; and what memory that takes."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .against_transformers import save_random_clip
from .measure import Line, by_turns, summary

TURNS = 3
RUN = [sys.executable, "-m", "fedcopl", "run", "--json"]

# What all processes of a run hold together, each page that several share counted once, looked at while it runs.
WATCHED = """
import json, sys, threading, time
from pathlib import Path
from multiprocessing import active_children
from fedcopl.cli import main

def held(process):
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

def watch():
    while True:
        try:
            processes = ["self", *(child.pid for child in active_children())]
            most[0] = max(most[0], sum(map(held, processes)))
        except (OSError, StopIteration):
            pass
        time.sleep(0.1)

most = [0]
threading.Thread(target=watch, daemon=True).start()
sys.argv = ["fedcopl", "run", "--json", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps(most[0]), file=sys.stderr)
"""

# Random weights know no class, so as published, where nobody refuses to train on doubtful labels. Few images: each is
# looked at several times beside the one step that is measured.
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
    measured = by_turns(partial(_seconds, 2), partial(_seconds, 1), TURNS)
    detail = f"whole command, {measured.in_seconds}"
    yield Line("workers-demo", "the demo, 2 workers", "1 worker", measured.ratio, 1.5, detail=detail)
    more = summary([_memory(2) / _memory(1) for _ in range(TURNS)])
    yield Line("workers-memory", "memory of the demo, 2 workers", "1 worker", more, 1.3, True)
    with tempfile.TemporaryDirectory() as name:
        save_random_clip(Path(name))
        shared, threaded = (partial(_training, name, *how) for how in ((2, 1), (1, 2)))
        measured = by_turns(shared, threaded, TURNS)
    detail = f"training alone, {measured.in_seconds}"
    yield Line("workers-vit", "ViT-B/32, 2 workers", "1 with 2 threads", measured.ratio, 1.2, detail=detail)


def _seconds(workers: int) -> float:
    """Of the whole command, as a user waits for it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*RUN, "--workers", str(workers), "--out", f"{folder}/run"]
        code = "import subprocess, sys, time; t = time.perf_counter(); subprocess.run(sys.argv[1:], check=True, "
        code += "capture_output=True); print(time.perf_counter() - t)"
        return float(subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True).stdout)


def _memory(workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", WATCHED, "rounds=2", "--workers", str(workers), "--out", f"{folder}/run"]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()[-1])


def _training(backbone: str, workers: int, threads: int) -> float:
    """Wall time in seconds of training all clients."""
    command = [sys.executable, "-c", ONE_STEP_EACH, backbone, str(workers), str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
