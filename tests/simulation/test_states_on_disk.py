"""States of many clients in files: the same bits as in memory, also after a kill, and none of them in memory."""

import gc
import os
import signal

import numpy as np
import pytest

from fedcopl.errors import RunFolderError
from fedcopl.federation.adaptation import PriorState
from fedcopl.federation.client import ClientState
from fedcopl.run.checkpoint import load_checkpoint
from fedcopl.run.record import to_plain
from fedcopl.run.state_store import StoredStates, as_they_are, files_in, stored
from fedcopl.run.watcher import SilentWatcher
from fedcopl.simulation import simulate as module
from fedcopl.simulation.simulate import simulate
from few_sites import bits, config_of, plainly, small, without_times  # noqa: F401

PRIVATE = ("privacy.secure_sums=true", "privacy.noise=0.5")


@pytest.fixture
def on_disk(monkeypatch):
    monkeypatch.setattr(module, "MANY_CLIENTS", 1)


def played(folder, count, *pairs, **more):
    return simulate(config_of(*pairs), folder, workers=count, dataset=small(), **more)


@pytest.mark.parametrize(
    "pairs", [(), ("method=pfedmoap", "labeler=cpl"), PRIVATE], ids=["fedcopl", "pfedmoap", "private"]
)
def test_the_same_bits_as_in_memory(tmp_path, plainly, monkeypatch, pairs):  # noqa: F811
    in_memory, memory = plainly(*pairs)
    monkeypatch.setattr(module, "MANY_CLIENTS", 1)
    for count in (1, 2):
        on_disk = played(tmp_path / str(count), count, *pairs)
        assert without_times(to_plain(on_disk)) == without_times(to_plain(in_memory))
        assert bits(tmp_path / str(count)) == bits(memory)
        assert list((tmp_path / str(count) / "states").glob("*.states"))


class Stops(SilentWatcher):
    """Like a kill when so many answers of a round are there."""

    def __init__(self, round, answers):
        self.round, self.left = round, answers

    def answered(self, client, ask):
        self.left -= ask.round == self.round
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("moment", [(0, 5), (1, 4), (1, 9)])
def test_stopped_at_any_moment_it_resumes_to_the_same_bits(tmp_path, plainly, monkeypatch, count, moment):  # noqa: F811
    whole, folder = plainly()
    monkeypatch.setattr(module, "MANY_CLIENTS", 1)
    with pytest.raises(KeyboardInterrupt):
        played(tmp_path / "stopped", count, watcher=Stops(*moment))
    resumed = played(tmp_path / "stopped", count, resume=True)
    assert without_times(to_plain(resumed)) == without_times(to_plain(whole))
    assert bits(tmp_path / "stopped") == bits(folder)


class CountsStates(SilentWatcher):
    def __init__(self):
        self.alive = []

    def round_done(self, record):
        gc.collect()
        everything = gc.get_objects()
        self.alive.append([sum(type(thing) is kind for thing in everything) for kind in (ClientState, PriorState)])


def test_no_state_is_left_in_memory_between_rounds(tmp_path, monkeypatch):
    def alive():
        watcher = CountsStates()
        played(tmp_path / str(len(list(tmp_path.iterdir()))), 1, watcher=watcher)
        return np.array(watcher.alive)

    in_memory = alive()
    monkeypatch.setattr(module, "MANY_CLIENTS", 1)
    on_disk = alive()
    assert (in_memory - on_disk >= 3).all()  # those of three clients
    assert (on_disk[-1] == on_disk[0]).all()


# The store itself


def state_of(number, told):
    own = {"text": np.full((2, 200), number, np.float32)}
    prior = PriorState(mix=np.array([0.25, 0.75]), distances=told)
    return ClientState(own=own, counts=np.array([number, 2]), prior=prior)


def test_what_all_were_told_is_there_once(tmp_path):
    told = np.arange(4000.0).reshape(2000, 2)
    states = {f"site {number}": state_of(number, told) for number in range(30)}
    store = stored(tmp_path, states, states)
    [common] = (tmp_path / "states").glob("*.common")
    assert common.stat().st_size == told.nbytes
    assert sum(file.stat().st_size for file in (tmp_path / "states").glob("*.states")) < 3 * told.nbytes
    for number, (name, state) in enumerate(store.items()):
        assert name == f"site {number}"
        assert state.own["text"].tolist() == states[name].own["text"].tolist()
        assert state.counts.tolist() == [number, 2] and state.counts.flags.writeable
        assert np.array_equal(state.prior.distances, told)
    ours = [store[name].prior.distances for name in list(states)[5:]]
    assert all(array is ours[0] for array in ours)


def test_what_one_client_keeps_is_its_own_however_often_it_is_written(tmp_path):
    store = stored(tmp_path, ["north"], {})
    for _ in range(3):
        store["north"] = state_of(1, np.zeros((1000, 2)))
    assert not list((tmp_path / "states").glob("*.common"))


def test_who_has_none_begins(tmp_path):
    store = stored(tmp_path, ["north", "south"], {"south": state_of(1, np.zeros((1, 2)))})
    assert store["north"] == ClientState() and len(store) == 2
    assert store["south"].counts.tolist() == [1, 2]


def test_files_of_no_use_go_but_not_before_nobody_needs_them(tmp_path):
    store = stored(tmp_path, ["north", "south"], {})
    for round in range(4):
        before = as_they_are(store)
        for name in store:
            for again in range(6):
                store[name] = state_of(10 * round + again, np.zeros((1, 2)))
        store.flush()
        store.committed()
        assert store["north"].counts.tolist() == [10 * round + 5, 2]
        if round:
            assert before["south"].counts.tolist() == [10 * round - 5, 2]
    del before
    store.committed()
    assert [file.name for file in (tmp_path / "states").glob("*.states")] == store.files()
    assert len(store.files()) == 1


def test_a_file_that_is_gone_is_said_in_one_line(tmp_path, on_disk):
    played(tmp_path / "run", 1)
    clients = load_checkpoint(tmp_path / "run").clients
    assert isinstance(clients, StoredStates) and set(clients) == set(small().clients)
    for file in (tmp_path / "run" / "states").glob("*.states"):
        file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(RunFolderError, match="holds no state at"):
        list(clients.values())


def test_a_forked_process_writes_a_file_of_its_own(tmp_path):
    store = stored(tmp_path, ["north", "south"], {"north": state_of(1, np.zeros((1, 2)))})
    child = os.fork()
    if not child:
        span = files_in(store.folder).write("south", state_of(7, np.zeros((1, 2))), store.generation)
        os.kill(os.getpid(), signal.SIGKILL if span.start == 0 else signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(store.folder.glob("*.states"))) == 2
    assert store["north"].counts.tolist() == [1, 2]
