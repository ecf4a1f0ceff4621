"""What the tests of grids have in common."""

from fedcopl.config import RunConfig
from fedcopl_experiments.store import ResultStore


class Diary:
    """Writes down what a grid tells."""

    def __init__(self):
        self.plan = None
        self.told = []

    def planned(self, total, done_before):
        self.plan = total, done_before

    def started(self, key, config):
        self.told.append(("started", key))

    def progressed(self, key, round, rounds):
        self.told.append((f"{round} of {rounds}", key))

    def finished(self, key, results):
        self.told.append(("finished", key))

    def failed(self, key, message):
        self.told.append((f"failed: {message}", key))

    def of(self, key):
        return [what for what, whose in self.told if whose == key]


def config_of(seed=1, act="behave", **settings):
    options = {} if act == "behave" else {"act": act}
    return RunConfig.from_mapping({"seed": seed, "rounds": 2, "options": options} | settings, "test")


def store_of(place):
    return ResultStore(place / "results.sqlite")


def plays(place):
    """[key, process, GPU] of every time that a run was played."""
    file = place / "runs" / "plays.txt"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []
