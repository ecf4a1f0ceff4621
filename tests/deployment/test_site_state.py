"""The state of a site: the reply to a repeated request is computed once."""

import json
import resource

import numpy as np
import pytest

from fakes import NO_PRIORS, START, FakeLearner, NoisyLearner, clients, run, start
from fedcopl.config import RunConfig
from fedcopl.deployment.site.site_state import SiteProgress, SiteState
from fedcopl.deployment.terms import Refused
from fedcopl.errors import RunFolderError
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState, rewind, state_from, state_tensors
from fedcopl.messages import Estimate, Evaluate, Select, SetupKeys, Train
from fedcopl.privacy.mask_session import Session
from fedcopl.privacy.private_replies import NoisyReply, Secrets
from fedcopl.simulation.simulate import LocalTransport

SHARED = {"visual": START["visual"]}
TOTALS = np.array([5, 5, 5])
CLIENT = Client(NoisyLearner(1), RunConfig())


def round_of(number, totals=TOTALS, shared=SHARED):
    return [Estimate(number, shared), Select(number, 0, totals, 2), Train(number, shared)]


def replies_to(states, requests, attempt=1, client=CLIENT):
    return [states.handle(message, attempt, compute_with(client, message)) for message in requests]


def compute_with(client, message):
    return lambda step, state: client.handle(message, state)


def never(step, state):
    raise AssertionError("computed twice")


def bits(reply):
    return reply.shared["visual"].tobytes()


def state_bits(state):
    return {name: array.tobytes() for name, array in state_tensors(state).items()}


@pytest.fixture
def states(tmp_path):
    return SiteState(tmp_path / "state")


def test_a_state_survives_the_disk(states):
    *_, trained = replies_to(states, round_of(0))
    state = ClientState()
    for message in round_of(0):
        reply, state = CLIENT.handle(message, state)
    assert bits(trained) == bits(reply)
    assert state_bits(SiteState(states.folder).state()) == state_bits(state)
    assert state_bits(state_from(state_tensors(state))) == state_bits(state)


def test_a_repeated_request_gets_the_same_bits_without_computation(states):
    first = replies_to(states, round_of(0))
    again = [SiteState(states.folder).handle(message, 1, never) for message in reversed(round_of(0))]
    assert [type(reply) for reply in again] == [type(reply) for reply in reversed(first)]
    assert bits(again[0]) == bits(first[2])


def test_an_older_request_is_refused_and_changes_nothing(states):
    replies_to(states, [*round_of(0), Train(1, SHARED)])
    before = state_bits(states.state())
    with pytest.raises(Refused, match="an outdated request, of round 1 and the server's start 1"):
        states.handle(Train(0, SHARED), 1, never)
    replies_to(states, [Train(1, SHARED)], attempt=2)
    with pytest.raises(Refused, match="the server's start 1"):
        states.handle(Train(1, SHARED), 1, never)
    assert state_bits(states.state()) == before


def test_a_restarted_server_gets_the_same_replies(states):
    first = replies_to(states, round_of(0))
    again = [states.handle(message, 2, never) for message in round_of(0)]
    assert bits(again[2]) == bits(first[2])


def test_a_site_repeats_its_round_from_the_first_request_that_a_restarted_server_changes(states, tmp_path):
    replies_to(states, round_of(0))
    # After the restart other sites reply: the second request has other totals. An undisturbed run has the same bits.
    other = np.array([9, 0, 1])
    undisturbed = SiteState(tmp_path / "other")
    expected = replies_to(undisturbed, round_of(0, other))
    got = replies_to(states, round_of(0, other), attempt=2)
    assert bits(got[2]) == bits(expected[2])
    assert state_bits(states.state()) == state_bits(undisturbed.state())


def test_the_next_round_begins_where_the_last_one_ended(states, tmp_path):
    replies_to(states, round_of(0))
    replies_to(states, round_of(0), attempt=2)
    replies_to(states, [Train(1, SHARED)], attempt=2)
    plain = ClientState()
    for message in [*round_of(0), Train(1, SHARED)]:
        _, plain = CLIENT.handle(message, plain)
    assert state_bits(states.state()) == state_bits(plain)
    kept = json.loads((states.folder / "now.json").read_text())
    assert kept["round"] == 1 and len(kept["path"]) == 1
    assert len(list(states.folder.glob("*.safetensors"))) == 2  # the step before the round, and its only step


def test_a_step_that_was_not_recorded_is_computed_again_with_the_same_bits(states, monkeypatch):
    replies_to(states, round_of(0)[:2])
    monkeypatch.setattr(SiteState, "_write_progress", lambda self, progress: 1 / 0)  # killed before now.json
    with pytest.raises(ZeroDivisionError):
        replies_to(states, round_of(0)[2:])
    monkeypatch.undo()
    *_, trained = replies_to(states, round_of(0))
    fresh = SiteState(states.folder.parent / "fresh")
    assert bits(trained) == bits(replies_to(fresh, round_of(0))[2])


def test_a_full_disk_is_an_error_and_loses_nothing(states):
    replies_to(states, round_of(0)[:2])
    before = state_bits(states.state())
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
    try:
        with pytest.raises(RunFolderError, match="cannot be written"):
            replies_to(states, round_of(0)[2:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert state_bits(states.state()) == before
    assert replies_to(states, round_of(0)[2:])[0].examples > 0


def test_a_damaged_file_is_named(states):
    replies_to(states, round_of(0))
    for file in states.folder.glob("*.safetensors"):
        file.write_bytes(b"rubbish")
    with pytest.raises(RunFolderError, match=r"\.safetensors: is damaged"):
        states.state()
    (states.folder / "now.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"now\.json: is damaged"):
        states.progress()


def test_a_seeded_site_begins_with_the_given_state(states):
    state = ClientState(own={"text": np.ones((1, 3), np.float32)})
    states.seed(state)
    assert state_bits(states.state()) == state_bits(state)
    assert replies_to(states, [Estimate(7, SHARED)])[0].counts is not None


def test_the_use_of_keys_is_never_undone():
    before = ClientState(counts=np.ones(3, np.int64), secrets=Secrets(Session(b"sum", b"private")))
    latest = ClientState(secrets=Secrets(None, (b"x" * 32,), "later", {"Train": NoisyReply(3, "asked", b"said")}))
    back = rewind(before, latest)
    assert (back.secrets.noisy_replies, back.secrets.history) == (latest.secrets.noisy_replies, "")
    assert (back.secrets.session, back.secrets.used_keys) == (None, (b"x" * 32,))
    assert back.counts.tolist() == [1, 1, 1]


def test_another_attempt_keeps_the_latest_step(states):
    replies_to(states, round_of(0))
    latest = states.progress().latest
    replies_to(states, round_of(0)[:1], attempt=2)
    progress = states.progress()
    assert progress.last_step != latest == progress.latest  # the step that `rewind` needs
    assert SiteProgress().for_request(1, 0).latest == ""


# Privacy

NOISE = RunConfig.from_mapping({"rounds": 6, "privacy": {"noise_multiplier": 2.0}}, "test")
MANY = Client(FakeLearner(0, 900), NOISE, secret=bytes(range(32)))


def other(shift):
    return {"visual": START["visual"] + np.float32(shift)}


def test_noise_cannot_be_averaged_away_by_changed_requests(states):
    [first] = replies_to(states, [Estimate(0, SHARED)], client=MANY)
    for attempt, shift in ((1, 1e-6), (2, 1e-6), (3, 2e-6)):
        with pytest.raises(ValueError, match="Estimate request in round 1 differs from the earlier one"):
            replies_to(states, [Estimate(0, other(shift))], attempt, MANY)
        assert replies_to(states, [Estimate(0, SHARED)], attempt, MANY)[0].counts.tolist() == first.counts.tolist()


def test_noise_is_the_same_when_training_on_other_labels(states):
    *_, first = replies_to(states, round_of(0), client=MANY)
    # A restarted server may have other totals; the noisy reply of this round is sent again.
    *_, again = replies_to(states, round_of(0, np.array([9, 0, 1])), 2, MANY)
    assert bits(again) == bits(first)
    with pytest.raises(ValueError, match="Train request in round 1 differs from the earlier one"):
        replies_to(states, [Train(0, other(1))], 2, MANY)
    [later] = replies_to(states, [Train(1, SHARED)], 2, MANY)
    assert bits(later) != bits(first)
    assert replies_to(SiteState(states.folder), [Estimate(5, SHARED)], 3, MANY)[0].counts is not None


def test_a_repeated_round_has_the_same_bits_and_noise(states, tmp_path):
    replies_to(states, round_of(0)[:2], client=MANY)
    *_, trained = replies_to(states, round_of(0), 2, MANY)
    assert bits(trained) == bits(replies_to(SiteState(tmp_path / "whole"), round_of(0), client=MANY)[2])


SECURE = RunConfig.from_mapping({"rounds": 1, "privacy": {"secure_aggregation": True}, "priors": NO_PRIORS}, "test")


class StoringTransport(LocalTransport):
    """Clients that store their states in folders, as sites do; records every private key that was stored."""

    def __init__(self, folder, clients):
        super().__init__(clients)
        self.kept = {name: SiteState(folder / name) for name in clients}
        self.keys = {name: set() for name in clients}

    def request(self, requests):
        return {client: self._reply(client, message) for client, message in requests.items()}

    def _reply(self, client, message):
        kept = self.kept[client]
        reply = kept.handle(message, 1, compute_with(self._clients[client], message))
        session = kept.state().secrets.session
        if session is not None:
            self.keys[client].add(session.private)
        assert len(self.on_disk(client)) <= 1  # of the current aggregation
        return reply

    def on_disk(self, client):
        written = b"".join(file.read_bytes() for file in self.kept[client].folder.iterdir())
        return [key for key in self.keys[client] if key in written or key.hex().encode() in written]


def test_no_private_key_is_left_on_disk_after_a_run(tmp_path):
    federation = StoringTransport(tmp_path, clients(SECURE, NoisyLearner))
    run(SECURE, federation, start(), lambda *_: None)
    assert {name: len(keys) for name, keys in federation.keys.items()} == dict.fromkeys(federation.kept, 2)
    assert not any(map(federation.on_disk, federation.kept))
    plain = LocalTransport(clients(SECURE, NoisyLearner))
    run(SECURE, plain, start(), lambda *_: None)
    for name, states in federation.kept.items():
        assert states.state().own["text"].tobytes() == plain.states[name].own["text"].tobytes()


def test_no_private_key_is_left_by_a_dropped_site(states):
    client = Client(NoisyLearner(1), SECURE)
    replies_to(states, [SetupKeys(0, b"sum")], client=client)
    assert states.state().secrets.session is not None
    replies_to(states, [Evaluate(0, SHARED)], client=client)
    assert states.state().secrets.session is None
    assert b"private" not in b"".join(file.read_bytes() for file in states.folder.iterdir())


def test_only_its_owner_can_read_the_state_of_a_site(states):
    states.folder.mkdir(mode=0o755)  # of an older version
    replies_to(states, round_of(0))
    assert states.folder.stat().st_mode & 0o777 == 0o700
    rights = {file.name: file.stat().st_mode & 0o777 for file in states.folder.iterdir()}
    assert len(rights) == 5 and set(rights.values()) == {0o600}  # three steps, the latest secrets, now.json


def test_incomplete_files_are_removed(states):
    replies_to(states, round_of(0)[:1])
    (states.folder / ".x.secrets.part").write_bytes(b"half a key")
    replies_to(states, round_of(0)[1:])
    assert not (states.folder / ".x.secrets.part").exists()


def test_damaged_secrets_are_an_error(states):
    replies_to(states, round_of(0)[:1])
    [file] = states.folder.glob("*.secrets")
    file.write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"\.secrets: is damaged"):
        replies_to(states, round_of(0)[1:])
    file.unlink()
    with pytest.raises(RunFolderError, match=r"\.secrets: is damaged"):
        replies_to(states, round_of(0)[1:])
