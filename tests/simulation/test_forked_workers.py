"""Processes that share a machine's work: every job done once and told, whoever dies."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedcopl.errors import ConfigError
from fedcopl.simulation import forked_workers
from fedcopl.simulation.forked_workers import JobFailed, WorkerLost, Workers, how_many
from waiting import PATIENCE, until

FORK = multiprocessing.get_context("fork")


def doubled(name, job):
    return job * 2


def whose(name, job):
    """Who did it."""
    return os.getpid()


def two_at_a_time():
    """Work that only two can do, each of whom says who it is."""
    meeting = FORK.Barrier(2)

    def met(name, job):
        meeting.wait(PATIENCE)
        return os.getpid()

    return met


def test_results_come_in_the_order_of_the_jobs_and_are_told_as_they_are_done():
    told = []
    with Workers(2, doubled) as pool:
        jobs = {"c": 3, "a": np.arange(4), "b": "x"}
        results = pool.run(jobs, lambda name, result, seconds: told.append((name, seconds >= 0)))
    assert list(results) == ["c", "a", "b"]
    assert results["a"].tolist() == [0, 2, 4, 6]
    assert sorted(told) == [("a", True), ("b", True), ("c", True)]


def test_a_job_goes_where_the_one_before_was_done(monkeypatch):
    monkeypatch.setattr(forked_workers, "FEW", 0)  # by chance one of these no jobs takes longer than the others
    with Workers(2, two_at_a_time()) as pool:
        first = pool.run(dict.fromkeys("abcd"))
        groups = pool.grouped("abcd")
        assert len(set(first.values())) == 2
        assert os.getpid() not in first.values()
        assert pool.run(dict.fromkeys("abcd")) == first
    assert sorted(map(sorted, groups)) == sorted(
        sorted(name for name in first if first[name] == process) for process in set(first.values())
    )


@dataclass(frozen=True)
class Question:
    ask: object


def test_few_names_are_shared_out_by_what_they_took(monkeypatch):
    # By turns "a" and "e" are 104, the others 126; with "b" and "e" exchanged it is 112 and 118.
    with Workers(2, lambda name, job: os.getpid()) as pool:
        north, south = pool._workers
        pool._home = {"a": north, "e": north, "b": south, "c": south, "d": south}
        took = {"a": 60.0, "b": 47.0, "c": 41.0, "d": 38.0, "e": 39.0}
        pool._seconds = {name: {"int": seconds} for name, seconds in took.items()}
        pool._seconds["a"]["Sat"] = 5.0  # all that it is asked counts
        pool._share_out(dict.fromkeys("abcde"))
        assert sorted(map(sorted, pool.grouped("abcde"))) == [["a", "b"], ["c", "d", "e"]]
        pool._seconds["c"] = {"int": 41.5}
        pool._share_out(dict.fromkeys("abcde"))
        assert sorted(map(sorted, pool.grouped("abcde"))) == [["a", "b"], ["c", "d", "e"]]  # not worth moving
        monkeypatch.setattr(forked_workers, "FEW", 4)
        pool._home["b"] = south
        pool._share_out(dict.fromkeys("abcde"))
        assert pool._home["b"] is south


def test_jobs_that_stay_wait_for_their_process_as_long_as_it_is_there(monkeypatch):
    monkeypatch.setattr(forked_workers, "FEW", 0)
    with Workers(2, lambda name, job: os.getpid()) as pool:
        north = pool._workers[0]
        pool._home = dict.fromkeys("abcdef", north)
        assert set(pool.run(dict.fromkeys("abcdef"), stay=True).values()) == {north.process.pid}
        os.kill(north.process.pid, signal.SIGKILL)
        north.process.join()
        done = pool.run(dict.fromkeys("abcdef"), stay=True)
        assert set(done) == set("abcdef") and north.process.pid not in done.values()


def test_a_question_is_timed_by_what_is_asked():
    with Workers(2, lambda name, job: None) as pool:
        pool.run({"a": Question(1.5), "b": Question("x")})
        assert {name: list(kinds) for name, kinds in pool._seconds.items()} == {"a": ["float"], "b": ["str"]}


@dataclass(frozen=True)
class OfSeveral:
    clients: tuple[str, ...]


def test_a_job_of_several_is_remembered_for_each_of_them():
    with Workers(2, lambda name, job: os.getpid()) as pool:
        done = pool.run({"a": OfSeveral(("a", "b", "c")), "d": OfSeveral(("d", "e"))})
        assert done["a"] != done["d"]
        assert sorted(map(sorted, pool.grouped("abcde"))) == [["a", "b", "c"], ["d", "e"]]


def test_nobody_waits_while_there_is_work():
    """Two jobs at home in one process: the other, idle, takes one of them."""
    last = FORK.Event()

    def long_is_the_first(name, job):
        last.wait(PATIENCE) if name == "a" else name == "c" and last.set()
        return os.getpid()

    with Workers(2, long_is_the_first) as pool:
        first = pool.run(dict.fromkeys("abc"))
        assert first["b"] == first["c"] != first["a"]
        second = pool.run(dict.fromkeys("bc"))
    assert second["b"] != second["c"]


def test_the_longest_comes_first():
    order = []

    def noted(name, job):
        return job

    with Workers(1, noted, sizes={"a": 1, "b": 30, "c": 2}) as pool:
        pool.run({"a": 0, "b": 0, "c": 0}, lambda name, *_: order.append(name))
    assert order == ["b", "c", "a"]


@pytest.mark.parametrize("how", ["killed", "exits"])
def test_a_job_whose_process_is_lost_is_done_again(tmp_path, how):
    def once(name, job):
        mark = tmp_path / name
        if name == "bad" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL) if how == "killed" else os._exit(3)
        return job + 1

    with Workers(2, once) as pool:
        assert pool.run({"good": 1, "bad": 2, "other": 3}) == {"good": 2, "bad": 3, "other": 4}
        assert pool.run({"good": 5}) == {"good": 6}


def test_one_that_is_lost_between_two_jobs_is_replaced():
    with Workers(2, whose) as pool:
        first = pool.run(dict.fromkeys("ab"))
        os.kill(first["a"], signal.SIGKILL)
        os.waitpid(first["a"], os.WNOHANG)
        again = pool.run(dict.fromkeys("ab"))
    assert first["a"] not in again.values()


def test_a_job_that_ends_every_process_is_named():
    def deadly(name, job):
        return os.kill(os.getpid(), signal.SIGKILL) if name == "bad" else job

    with Workers(2, deadly) as pool:
        with pytest.raises(JobFailed, match="bad: its process was killed by signal 9, twice; is there enough mem") as e:
            pool.run({"good": 1, "bad": 2})
        assert (e.value.name, type(e.value.cause)) == ("bad", WorkerLost)
        assert pool.run({"good": 1}) == {"good": 1}


class TwoArguments(Exception):
    """One that Python cannot read back from what it writes of it."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ConfigError("no"), ConfigError, "^no$"),
        (TwoArguments(1, 2), RuntimeError, "TwoArguments: 1 and 2"),
    ],
)
def test_an_error_comes_back_and_the_next_jobs_are_done(error, kind, words):
    def careless(name, job):
        if job is None:
            raise error
        time.sleep(job)
        return job

    with Workers(2, careless) as pool:
        with pytest.raises(JobFailed) as failed:
            pool.run({"bad": None, "busy": 600})
        assert failed.value.name == "bad"
        with pytest.raises(kind, match=words):
            raise failed.value.cause
        assert pool.run({"bad": 0, "busy": 0}) == {"bad": 0, "busy": 0}


def test_what_was_there_before_is_shared_not_sent():
    large = np.zeros(1000)
    with Workers(1, lambda name, job: float(large[job])) as pool:
        large[3] = 7.0  # after the fork: theirs is as it was
        assert pool.run({"a": 3}) == {"a": 0.0}


def test_nobody_is_left_behind():
    with Workers(3, whose) as pool:
        processes = {worker.process.pid for worker in pool._workers}
        pool.run(dict.fromkeys("abc"))
    assert multiprocessing.active_children() == []
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


ORPHANS = """
import os, sys
from fedcopl.simulation.forked_workers import Workers
pool = Workers(2, lambda name, job: __import__("time").sleep(job))
print(*(worker.process.pid for worker in pool._workers), flush=True)
pool.run({"a": 600, "b": 600})
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


def test_how_many(monkeypatch):
    monkeypatch.delenv("FEDCOPL_WORKERS")
    monkeypatch.setattr(forked_workers, "cores", lambda: 8)
    assert how_many("auto", jobs=100) == 8
    assert how_many("auto", jobs=5) == 5
    assert how_many("auto", jobs=100, threads=3) == 2
    assert how_many("auto", jobs=100, threads=9) == 1
    assert how_many("auto", jobs=100, room=3) == 3
    assert how_many(12, jobs=100, room=3) == 12
    monkeypatch.setenv("FEDCOPL_WORKERS", "2")
    assert how_many("auto", jobs=100) == 2
    assert how_many(3, jobs=100) == 3


def test_numbers_that_cannot_be(monkeypatch):
    with pytest.raises(ConfigError, match="workers: should be auto or at least 1, not 0"):
        how_many(0, jobs=1)
    monkeypatch.setenv("FEDCOPL_WORKERS", "many")
    with pytest.raises(ConfigError, match="FEDCOPL_WORKERS: should be auto or a number of workers, not 'many'"):
        how_many("auto", jobs=1)
    monkeypatch.setattr(forked_workers, "can_fork", lambda: False)
    assert how_many("auto", jobs=100) == 1
    with pytest.raises(ConfigError, match="only Linux can share"):
        how_many(2, jobs=100)


def test_many_jobs_go_in_few_messages_and_none_is_lost_with_one(tmp_path):
    def once(name, job):
        if name == "77" and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return -job

    given = []

    class Counted(Workers):
        def _take(self, worker, take):
            given.append(len(worker.jobs))
            return super()._take(worker, take)

    jobs = {str(number): number for number in range(320)}
    with Counted(2, once) as pool:
        assert pool.run(jobs) == {name: -number for name, number in jobs.items()}
        assert max(given) == 20  # 320 jobs in at least eight messages for each of two
        given.clear()
        pool.run(jobs)
        assert (sum(given), len(given)) == (320, 16)
        given.clear()
        pool.run(dict(list(jobs.items())[:5]))
        assert given == [1] * 5
