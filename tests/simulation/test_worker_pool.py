"""A pool of forked processes: every job is done once and reported, whichever process dies."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fedcopl.errors import ConfigError, FedCoPLError
from fedcopl.simulation import worker_pool as workers
from fedcopl.simulation.worker_pool import WorkerFailed, WorkerPool, _balanced, _worker_count
from waiting import WAIT_LIMIT, until

NAMES = dict.fromkeys("abcd", 1)


def doubled(context, name, value):
    return value * 2


def process_id(context, name):
    return os.getpid()


def from_context(context, name, index):
    return float(context[index])


def test_results_come_in_the_order_of_the_jobs():
    reported = []
    with WorkerPool(2, None, {"a": 1, "b": 1, "c": 1}) as pool:
        jobs = {"c": (doubled, 3), "a": (doubled, np.arange(4)), "b": (doubled, "x")}
        results = pool.run(jobs, reported.append)
    assert list(results) == ["c", "a", "b"]
    assert results["a"].tolist() == [0, 2, 4, 6]
    assert sorted(reported) == ["a", "b", "c"]


def test_a_name_stays_with_its_worker():
    with WorkerPool(2, None, NAMES) as pool:
        first = pool.run(dict.fromkeys(NAMES, (process_id,)))
        assert first["a"] == first["c"] != first["b"] == first["d"]
        assert os.getpid() not in first.values()
        assert pool.run(dict.fromkeys(reversed(NAMES), (process_id,))) == first


def wait_for_last(context, name):
    """The first job ends only after the last one has begun."""
    if name == "a":
        until((context / "last").exists)
    if name == "c":
        (context / "last").touch()
    return os.getpid()


def test_an_idle_worker_steals(tmp_path):
    with WorkerPool(2, tmp_path, {"a": 9, "b": 9, "c": 1}) as pool:
        pool._worker_of = dict.fromkeys("abc", 0)
        done = pool.run(dict.fromkeys("abc", (wait_for_last,)), steal=True)
    assert done["c"] != done["a"]


@pytest.mark.parametrize(
    ("sizes", "count", "groups"),
    [
        ({"a": 65, "b": 47, "c": 41, "d": 38, "e": 39}, 2, [["a", "e"], ["b", "c", "d"]]),
        ({"a": 1}, 2, [["a"], []]),
        ({}, 1, [[]]),
    ],
)
def test_groups_are_balanced_largest_first(sizes, count, groups):
    assert _balanced(sizes, count) == groups


def die_once(context, name, how):
    mark = context / name
    if name == "bad" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL) if how == "killed" else os._exit(3)
    return how


@pytest.mark.parametrize("how", ["killed", "exits"])
def test_the_job_of_a_dead_worker_is_repeated(tmp_path, how):
    with WorkerPool(2, tmp_path, {"good": 1, "bad": 1, "other": 1}) as pool:
        assert pool.run(dict.fromkeys(("good", "bad", "other"), (die_once, how))) == {
            "good": how,
            "bad": how,
            "other": how,
        }
        assert pool.run({"good": (doubled, 5)}) == {"good": 10}


def test_a_worker_that_died_between_two_jobs_is_replaced():
    with WorkerPool(2, None, {"a": 1, "b": 1}) as pool:
        first = pool.run(dict.fromkeys("ab", (process_id,)))
        os.kill(first["a"], signal.SIGKILL)
        again = pool.run(dict.fromkeys("ab", (process_id,)))
    assert first["a"] not in again.values()


def die(context, name):
    return os.kill(os.getpid(), signal.SIGKILL) if name == "bad" else name


def test_a_job_that_kills_every_worker_is_named():
    with WorkerPool(2, None, {"good": 1, "bad": 1}) as pool:
        with pytest.raises(WorkerFailed, match="bad: its process was killed by signal 9, twice; is there enough") as e:
            pool.run({"good": (die,), "bad": (die,)})
        assert (e.value.name, type(e.value.cause)) == ("bad", FedCoPLError)
        assert pool.run({"good": (die,)}) == {"good": "good"}


class TwoArguments(Exception):
    """An error that pickle can write but not read."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def raise_or_sleep(context, name, error_or_seconds):
    if isinstance(error_or_seconds, str):
        raise ConfigError("no") if error_or_seconds == "known" else TwoArguments(1, 2)
    time.sleep(error_or_seconds)
    return error_or_seconds


@pytest.mark.parametrize(
    ("error", "kind", "words"), [("known", ConfigError, "^no$"), ("odd", RuntimeError, "TwoArguments: 1 and 2")]
)
def test_after_an_error_the_pool_can_be_used_again(error, kind, words):
    with WorkerPool(2, None, {"bad": 1, "busy": 1}) as pool:
        with pytest.raises(WorkerFailed) as failed:
            pool.run({"bad": (raise_or_sleep, error), "busy": (raise_or_sleep, 600)})
        assert failed.value.name == "bad"
        with pytest.raises(kind, match=words):
            raise failed.value.cause
        assert pool.run({"bad": (raise_or_sleep, 0), "busy": (raise_or_sleep, 0)}) == {"bad": 0, "busy": 0}


def test_the_context_is_shared_not_sent():
    large = np.zeros(1000)
    with WorkerPool(1, large, {"a": 1}) as pool:
        large[3] = 7.0  # after the fork: the worker's is as it was
        assert pool.run({"a": (from_context, 3)}) == {"a": 0.0}


def test_no_process_is_left_behind():
    with WorkerPool(3, None, NAMES) as pool:
        processes = {worker.process.pid for worker in pool._workers}
        pool.run(dict.fromkeys(NAMES, (process_id,)))
    assert multiprocessing.active_children() == []
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


def write_warning(context, name):
    print("a warning", file=sys.stderr)


def test_a_worker_writes_although_the_parents_stderr_was_locked_when_it_was_forked(monkeypatch):
    class LockedStream(io.StringIO):  # as that of a progress bar whose thread is drawing
        lock = threading.Lock()

        def write(self, text):
            assert self.lock.acquire(timeout=10)
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", LockedStream())
    with LockedStream.lock, WorkerPool(1, None, {"a": 1}) as pool:
        assert pool.run({"a": (write_warning,)}) == {"a": None}


INTERRUPTED_FORK = """
import os, signal
from fedcopl.simulation.worker_pool import WorkerPool
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    WorkerPool(1, None, {})
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_during_a_fork_is_not_lost():
    """Python ignores exceptions in functions that it calls after a fork: the run would continue."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_FORK], capture_output=True, text=True, timeout=WAIT_LIMIT)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


ORPHANS = """
import time
from fedcopl.simulation.worker_pool import WorkerPool
def sleep(context, name, seconds):
    time.sleep(seconds)
pool = WorkerPool(2, None, {"a": 1, "b": 1})
print(*(worker.process.pid for worker in pool._workers), flush=True)
pool.run({"a": (sleep, 600), "b": (sleep, 600)})
"""


def test_when_the_parent_is_killed_its_workers_end():
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    processes = [int(number) for number in parent.stdout.readline().split()]
    assert all(Path(f"/proc/{process}").exists() for process in processes)
    parent.kill()
    parent.wait()
    until(lambda: not any(is_alive(process) for process in processes))


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_worker_count(monkeypatch):
    monkeypatch.delenv("FEDCOPL_WORKERS")
    monkeypatch.setattr(workers, "available_cores", lambda: 8)
    assert _worker_count("auto", jobs=100) == 8
    assert _worker_count("auto", jobs=5) == 5
    assert _worker_count("auto", jobs=100, threads=3) == _worker_count(1, jobs=100, threads=3) == 1
    with pytest.raises(ConfigError, match="each has one thread"):
        _worker_count(2, jobs=100, threads=3)
    assert _worker_count("auto", jobs=100, memory_limit=3) == 3
    assert _worker_count(12, jobs=100, memory_limit=3) == 12
    monkeypatch.setenv("FEDCOPL_WORKERS", "2")
    assert _worker_count("auto", jobs=100) == 2
    assert _worker_count(3, jobs=100) == 3


def test_impossible_numbers_of_workers(monkeypatch):
    with pytest.raises(ConfigError, match="workers: should be auto or at least 1, not 0"):
        _worker_count(0, jobs=1)
    monkeypatch.setenv("FEDCOPL_WORKERS", "many")
    with pytest.raises(ConfigError, match="FEDCOPL_WORKERS: should be auto or a number of workers, not 'many'"):
        _worker_count("auto", jobs=1)
    monkeypatch.setattr(workers, "_can_fork", lambda: False)
    assert _worker_count("auto", jobs=100) == 1
    with pytest.raises(ConfigError, match="only Linux can share"):
        _worker_count(2, jobs=100)
