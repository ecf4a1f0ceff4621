"""Answers in two parts, given by different processes: the same bits as in one piece."""

import os
import pickle
import signal
from dataclasses import dataclass, replace

import pytest

from fedcopl.federation.client import Client
from fedcopl.messages import Estimate, Train
from fedcopl.methods import settled
from fedcopl.run.record import to_plain
from fedcopl.run.watcher import SilentWatcher
from fedcopl.simulation import forked_workers, in_workers
from fedcopl.simulation.assemble import assemble
from fedcopl.simulation.even_shares import wrapped
from fedcopl.simulation.forked_workers import JobFailed, Unfinished, Workers
from fedcopl.simulation.in_parts import HalfAnswered, first_part, parts_of, second_part
from fedcopl.simulation.simulate import simulate
from few_sites import bits, config_of, plainly, small, without_times  # noqa: F401

WHOLE = Client.answer
RUNS = {
    "fedcopl": (),
    "candidate sets that learn": ("method=local", "labeler=cpl", "labels.cpl_loss=rc", "train.clip_norm=0.1"),
    "text prompts alone": ("method=promptprox", "labeler=fpl"),
    "a way of its own": ("method=pfedmoap", "labeler=fpl"),
    "with noise": ("privacy.secure_sums=true", "privacy.noise=0.5"),
}


@pytest.mark.parametrize("pairs", RUNS.values(), ids=RUNS)
def test_two_parts_are_one_whole(tmp_path, monkeypatch, plainly, pairs):  # noqa: F811
    pairs = ("epochs=3", *pairs)
    outcome, folder = plainly(*pairs)
    halves = []

    def in_two(client, ask, state):
        if parts_of(client, ask) == 1:
            return WHOLE(client, ask, state)
        first = first_part(client, ask, state, 1 + ask.round)
        if not isinstance(first, HalfAnswered):
            return first
        halves.append(first.training.epochs)
        return second_part(client, ask, state, pickle.loads(pickle.dumps(first)))

    monkeypatch.setattr(Client, "answer", in_two)
    parted = simulate(config_of(*pairs), tmp_path / "parts", workers=1, dataset=small())
    assert set(halves) == {1, 2}  # of three epochs
    assert without_times(to_plain(outcome)) == without_times(to_plain(parted))
    assert bits(folder) == bits(tmp_path / "parts")


def test_workers_share_a_training_and_change_no_bit(tmp_path, monkeypatch, plainly):  # noqa: F811
    _, folder = plainly("epochs=3", "rounds=3")
    cut = []

    def noted(job, part):
        cut.append(job.ask.round)
        return replace(job, part=part)

    monkeypatch.setattr(in_workers.AskedOf, "up_to", noted)
    # As if all had taken equally long: of three on two processes one is cut in the middle.
    monkeypatch.setattr(forked_workers, "wrapped", lambda groups, known: wrapped(groups, dict.fromkeys(known, 2)))
    simulate(config_of("epochs=3", "rounds=3"), tmp_path / "two", workers=2, dataset=small())
    assert cut == [1, 2]  # in the first round nobody knows how long anybody takes
    assert bits(folder) == bits(tmp_path / "two")


def test_only_training_has_parts():
    whole = assemble(settled(config_of("epochs=3")), SilentWatcher(), small())
    client = whole.clients["east"]
    assert parts_of(client, Estimate(0, {})) == 1 and parts_of(client, Train(0, {})) == 3
    plain = assemble(settled(config_of("epochs=3", "method=priors")), SilentWatcher(), small())
    assert parts_of(plain.clients["east"], Train(0, {})) == 1  # nothing is trained


def test_each_gets_as_much_as_the_others():
    # 9 in all, 3 each. b: 2 fit into the first, 1 begins the second; d: 1 fits there, 1 begins the third.
    lengths = {"a": 1, "b": 3, "c": 1, "d": 2, "e": 2}
    assert wrapped([["a", "b"], ["c"], ["d", "e"]], lengths) == [
        [("a", 1.0)],
        [("b", 1 / 3), ("c", 1.0)],
        [("d", 0.5), ("e", 1.0)],
    ]
    # Nobody begins a name in one group while it is ended in another: the longest takes as long as any group.
    assert wrapped([["a", "b"], []], {"a": 2, "b": 9}) == [[("a", 1.0)], [("b", 2 / 9)]]
    assert wrapped([["a"], ["b"]], {"a": 0, "b": 0}) == [[("a", 1.0), ("b", 1.0)], []]


@dataclass(frozen=True)
class Steps:
    """A job of some steps: where each was done."""

    parts: int
    until: int = 0
    done: tuple[int, ...] = ()

    def up_to(self, part):
        return replace(self, until=part)


def walked(name, job):
    """Every step in this process, up to the one where it is to stop."""
    last = job.until or job.parts
    done = (*job.done, *[os.getpid()] * (last - len(job.done)))
    return Unfinished(replace(job, until=0, done=done)) if job.until else done


def timed(pool, seconds):
    """As if each had taken so long before, the first two in the first process."""
    north, south = pool._workers
    pool._home = dict(zip("abc", (north, north, south), strict=True))
    pool._seconds = {name: {"Steps": taken} for name, taken in zip("abc", seconds, strict=True)}
    return north.process.pid, south.process.pid


def test_a_job_begins_in_one_process_and_ends_in_another():
    told = []
    with Workers(2, walked) as pool:
        north, south = timed(pool, (4.0, 4.0, 2.0))  # 5 each: 3 of b's 4 are left for the other
        waiting, ends_at = pool._in_parts(jobs := {name: Steps(4) for name in "abc"})
        assert jobs == {"a": Steps(4), "b": Steps(4, until=3), "c": Steps(4)}
        assert [waiting.take(worker, 9, pool._workers) for worker in pool._workers] == [["a"], ["b", "c"]]
        assert {name: worker.process.pid for name, worker in ends_at.items()} == {"b": north}
        done = pool.run({name: Steps(4) for name in "abc"}, lambda name, *_: told.append(name))
        assert done["a"] == (north,) * 4 and len(done["b"]) == len(done["c"]) == 4
        assert done["b"][:3] == (south,) * 3  # the last one is done by whoever is idle first: these take no time
    assert sorted(told) == ["a", "b", "c"]


def test_parts_too_small_to_cut_are_left_whole():
    with Workers(2, walked) as pool:
        timed(pool, (4.0, 4.4, 4.0))  # 6.2 each: 2.2 of b go to the other, half of it
        pool._in_parts(halves := {name: Steps(2) for name in "abc"})
        assert halves == {"a": Steps(2), "b": Steps(2, until=1), "c": Steps(2)}
        timed(pool, (5.0, 1.2, 6.0))  # 6.1 each: a tenth of b goes to the other, less than half a step of two
        waiting, ends_at = pool._in_parts(whole := {name: Steps(2) for name in "abc"})
        assert whole == {name: Steps(2) for name in "abc"} and not ends_at
        assert [waiting.take(worker, 9, pool._workers) for worker in pool._workers] == [["a", "b"], ["c"]]
        assert not pool._can_be_cut({"a": Steps(2), "b": Steps(1)})  # that one has no parts
        assert not pool._can_be_cut({"a": Steps(2), "d": Steps(2)})  # nobody knows how long that one takes


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_second_part_whose_process_is_lost_is_done_again_from_the_first(tmp_path, deaths):
    def deadly(name, job):
        if job.done and len(list(tmp_path.iterdir())) < deaths:
            (tmp_path / f"{len(list(tmp_path.iterdir()))}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return walked(name, job)

    with Workers(2, deadly) as pool:
        _, south = timed(pool, (4.0, 4.0, 2.0))
        jobs = {name: Steps(4) for name in "abc"}
        if deaths == 2:
            with pytest.raises(JobFailed, match="b: its process was killed"):
                pool.run(jobs)
            return
        done = pool.run(jobs)
        assert done["b"][:3] == (south, south, south) and len(done["b"]) == 4
