"""What the tests of grids have in common."""

from fedcopl.config import RunConfig
from fedcopl_experiments.store import ResultStore


class Diary:
    """Writes down what a grid tells."""

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
        return [what for what, whose in self.events if whose == key]


def config_of(seed=1, act="behave", **settings):
    options = {} if act == "behave" else {"act": act}
    return RunConfig.from_mapping({"seed": seed, "rounds": 2, "options": options} | settings, "test")


def store_of(folder):
    return ResultStore(folder / "results.sqlite")


def plays(folder):
    """[key, process, GPU] of every time that a run was played."""
    file = folder / "runs" / "plays.txt"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []
