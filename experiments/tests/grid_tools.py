"""Helpers of the tests of grids."""

from fedcopl.config import RunConfig
from fedcopl_experiments.store import ResultStore


class RecordingWatcher:
    """Records the events of a grid."""

    def __init__(self):
        self.plan = None
        self.events = []

    def planned(self, total, done_before):
        self.plan = total, done_before

    def started(self, key, config):
        self.events.append(("started", key))

    def progressed(self, key, round, rounds):
        self.events.append((f"{round} of {rounds}", key))

    def finished(self, key, outcome):
        self.events.append(("finished", key))

    def failed(self, key, message):
        self.events.append((f"failed: {message}", key))

    def of(self, key):
        return [event for event, run in self.events if run == key]


def config_of(seed=1, act="behave", **settings):
    options = {} if act == "behave" else {"act": act}
    return RunConfig.from_mapping({"seed": seed, "rounds": 2, "options": options} | settings, "test")


def store_of(folder):
    return ResultStore(folder / "results.sqlite")


def executions(folder):
    """Return [key, process, GPU] of every execution of a run."""
    file = folder / "runs" / "executions.txt"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []
