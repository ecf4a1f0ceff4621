"""A fake simulation for workers, with the folder, lock and files of a real one, without torch.

The option `act` names the behaviour of a run, a key of `ACTS`; with `until=FILE` the run succeeds once FILE exists.
"""

import multiprocessing
import os
import sys
from functools import partial
from pathlib import Path

from fedcopl.config import RunConfig
from fedcopl.errors import DataError, RunFolderError
from fedcopl.run.folder import RunFolder
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.run.record import RoundRecord, to_plain
from stored_runs import outcome_of
from waiting import until

CODE = "0.1.0+fake"
START = """
import sys; sys.path[:] = sys.argv[1:]
import fake_simulation
from fedcopl_experiments import run_key
sys.modules["fedcopl.simulation.simulate"] = sys.modules["fedcopl.report.run_page"] = fake_simulation
run_key.code_version = lambda: fake_simulation.CODE
from fedcopl_experiments.worker_process import main; main()
"""


def simulate(config: RunConfig, folder: Path, *, resume: bool, progress: ProgressReporter):
    assert resume
    assert "torch" not in sys.modules, "a worker imports torch before its simulation"
    with RunFolder(folder) as run_folder:
        run_folder.open(config, resume=resume)
        run_folder.begin(config)
        with (folder.parent / "executions.txt").open("a") as file:
            gpu, workers = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("FEDCOPL_WORKERS")
            file.write(f"{folder.name} {os.getpid()} {gpu} {workers}\n")
        progress.started(config, 2, 0)
        print("output of a library")  # must not be read as a message
        act = config.options.get("act", "behave")
        if not is_fixed(config):
            ACTS[act](config, folder.parent)
        progress.round_done(RoundRecord(round=0))
        outcome = outcome_of(config)
        run_folder.write_text("checkpoint.safetensors", "large")
        run_folder.write_json("results.json", to_plain(outcome))
        run_folder.write_text("prompts/server.safetensors", "prompts")
        run_folder.write_text("examples.json", "[]")
    if act == "find it finished":
        raise RunFolderError(f"{folder}: was finished by another grid")
    if act == "be killed at the end" and not is_fixed(config):
        os.kill(os.getpid(), 9)
    return outcome


def write_report(folder: Path):
    (folder / "report.html").write_text("page")


def is_fixed(config):
    return Path(str(config.options.get("until", "/nowhere"))).exists()


def _lack_images(config, runs):
    raise DataError("photos: there is no such folder")


def _crash(config, runs):
    raise ZeroDivisionError("in the\nmiddle")


def _abort(config, runs):
    print("terminate called: no room", file=sys.stderr, flush=True)
    os.abort()


def _compute_forever(config, runs):
    while True:
        sum(range(1000))


def _fork(config, runs):
    """Fork, as a simulation does, while the grid's worker waits for its next task."""
    until(lambda: any("_receive" in str(frame.f_code) for frame in sys._current_frames().values()))
    child = multiprocessing.get_context("fork").Process(target=os.getpid, daemon=True)
    child.start()
    child.join(20)
    if child.is_alive():
        raise TimeoutError("a forked process hangs")


def _meet(count, config, runs):
    """Wait until this many processes execute runs."""
    until(lambda: len({line.split()[1] for line in (runs / "executions.txt").read_text().splitlines()}) >= count)


ACTS = {
    "behave": lambda config, runs: None,
    "lack images": _lack_images,
    "crash": _crash,
    "abort": _abort,
    "be killed at the end": lambda config, runs: None,
    "find it finished": lambda config, runs: None,
    "be killed": lambda config, runs: os.kill(os.getpid(), 9),
    "fork": _fork,
    "leave": lambda config, runs: os._exit(3),
    "meet 2": partial(_meet, 2),
    "meet 3": partial(_meet, 3),
    "compute forever": _compute_forever,
}
