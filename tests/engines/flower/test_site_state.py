"""What a site keeps: a question is worked out once, however often and in whatever attempt it is asked."""

import json
import resource

import numpy as np
import pytest

from fakes import START, NoisyLearner
from fedcopl.client import Client, ClientState
from fedcopl.config import RunConfig
from fedcopl.engines.flower.site_state import Place, SiteState
from fedcopl.engines.flower.terms import Refused
from fedcopl.errors import RunFolderError
from fedcopl.masking.session import Session
from fedcopl.messages import Estimate, Select, Train
from fedcopl.states import state_from, state_tensors, taken_back
from fedcopl.sums.telling import Secrets

SHARED = {"visual": START["visual"]}
TOTALS = np.array([5, 5, 5])
CLIENT = Client(NoisyLearner(1), RunConfig())


def round_of(number, totals=TOTALS, shared=SHARED):
    return [Estimate(number, shared), Select(number, 0, totals, 2), Train(number, shared)]


def told(states, asks, attempt=1, client=CLIENT):
    return [states.answer(ask, attempt, lambda state, ask=ask: client.answer(ask, state)) for ask in asks]


def never(state):
    raise AssertionError("worked out twice")


def bits(reply):
    return reply.shared["visual"].tobytes()


def state_bits(state):
    return {name: array.tobytes() for name, array in state_tensors(state).items()}


@pytest.fixture
def states(tmp_path):
    return SiteState(tmp_path / "state")


def test_a_state_survives_the_disk(states):
    *_, trained = told(states, round_of(0))
    state = ClientState()
    for ask in round_of(0):
        reply, state = CLIENT.answer(ask, state)
    assert bits(trained) == bits(reply)
    assert state_bits(SiteState(states.folder).state()) == state_bits(state)
    assert state_bits(state_from(state_tensors(state))) == state_bits(state)


def test_a_question_asked_again_gets_the_same_bits_and_is_not_worked_out_again(states):
    first = told(states, round_of(0))
    again = [SiteState(states.folder).answer(ask, 1, never) for ask in reversed(round_of(0))]
    assert [type(reply) for reply in again] == [type(reply) for reply in reversed(first)]
    assert bits(again[0]) == bits(first[2])


def test_an_older_question_is_refused_and_changes_nothing(states):
    told(states, [*round_of(0), Train(1, SHARED)])
    before = state_bits(states.state())
    with pytest.raises(Refused, match="an old question, of round 1 and start 1"):
        states.answer(Train(0, SHARED), 1, never)
    told(states, [Train(1, SHARED)], attempt=2)
    with pytest.raises(Refused, match="start 1 of the server"):
        states.answer(Train(1, SHARED), 1, never)
    assert state_bits(states.state()) == before


def test_a_restarted_server_meets_the_same_steps(states):
    first = told(states, round_of(0))
    again = [states.answer(ask, 2, never) for ask in round_of(0)]
    assert bits(again[2]) == bits(first[2])


def test_where_a_restarted_server_asks_otherwise_the_site_goes_back_to_that_point(states, tmp_path):
    told(states, round_of(0))
    # After the restart others answered: other totals at the second question. As if it had been so from the start:
    other = np.array([9, 0, 1])
    undisturbed = SiteState(tmp_path / "other")
    wanted = told(undisturbed, round_of(0, other))
    got = told(states, round_of(0, other), attempt=2)
    assert bits(got[2]) == bits(wanted[2])
    assert state_bits(states.state()) == state_bits(undisturbed.state())


def test_the_next_round_begins_where_the_last_one_ended(states, tmp_path):
    told(states, round_of(0))
    told(states, round_of(0), attempt=2)
    told(states, [Train(1, SHARED)], attempt=2)
    plain = ClientState()
    for ask in [*round_of(0), Train(1, SHARED)]:
        _, plain = CLIENT.answer(ask, plain)
    assert state_bits(states.state()) == state_bits(plain)
    kept = json.loads((states.folder / "now.json").read_text())
    assert kept["round"] == 1 and len(kept["path"]) == 1
    assert len(list(states.folder.glob("*.safetensors"))) == 2  # where the round began, and its only step


def test_a_stop_before_the_last_write_makes_the_step_again_with_the_same_bits(states, monkeypatch):
    told(states, round_of(0)[:2])
    monkeypatch.setattr(SiteState, "_move_to", lambda self, place: 1 / 0)  # killed after the step, before now.json
    with pytest.raises(ZeroDivisionError):
        told(states, round_of(0)[2:])
    monkeypatch.undo()
    *_, trained = told(states, round_of(0))
    fresh = SiteState(states.folder.parent / "fresh")
    assert bits(trained) == bits(told(fresh, round_of(0))[2])


def test_a_full_disk_is_an_error_and_loses_nothing(states):
    told(states, round_of(0)[:2])
    before = state_bits(states.state())
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
    try:
        with pytest.raises(RunFolderError, match="cannot be written"):
            told(states, round_of(0)[2:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert state_bits(states.state()) == before
    assert told(states, round_of(0)[2:])[0].examples > 0


def test_a_damaged_file_is_named(states):
    told(states, round_of(0))
    for file in states.folder.glob("*.safetensors"):
        file.write_bytes(b"rubbish")
    with pytest.raises(RunFolderError, match=r"\.safetensors: is damaged"):
        states.state()
    (states.folder / "now.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"now\.json: is damaged"):
        states.place()


def test_a_seeded_site_begins_with_what_it_is_given(states):
    state = ClientState(own={"text": np.ones((1, 3), np.float32)})
    states.seed(state)
    assert state_bits(states.state()) == state_bits(state)
    assert told(states, [Estimate(7, SHARED)])[0].counts is not None


def test_what_keys_were_used_for_is_never_taken_back():
    before = ClientState(counts=np.ones(3, np.int64), secrets=Secrets(Session(b"sum", b"private")))
    latest = ClientState(secrets=Secrets(None, (b"x" * 32,)))
    back = taken_back(before, latest)
    assert (back.secrets.session, back.secrets.spent) == (None, (b"x" * 32,))
    assert back.counts.tolist() == [1, 1, 1]


def test_a_fork_knows_the_latest_step_of_all(states):
    told(states, round_of(0))
    latest = states.place().latest
    told(states, round_of(0)[:1], attempt=2)
    place = states.place()
    assert place.last != latest == place.latest  # so that `taken_back` is given it
    assert Place().at(1, 0).latest == ""
