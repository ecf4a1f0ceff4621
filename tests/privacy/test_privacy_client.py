"""One client with privacy settings: its masked and noisy replies, and the requests that it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fakes import START, FakeLearner
from fedcopl.config import RunConfig
from fedcopl.errors import CannotReply, ConfigError
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState, rewind, state_from, state_tensors
from fedcopl.messages import Estimate, Select, SetupKeys, ShareKeys, Train, Unmask, digest
from fedcopl.privacy import require_cryptography
from fedcopl.privacy.private_replies import Secrets

VISUAL = {"visual": np.full((2, 3), 5, np.float32)}
TOTALS = np.array([3, 3, 3])
SECRET = bytes(range(32))
NAMES = ("a", "b", "c")


def client_with(secret=SECRET, images=12, **privacy):
    config = RunConfig.from_mapping({"privacy": privacy}, "test")
    return Client(FakeLearner(images=images), config, secret=secret)


# Secure aggregation


class Sum:
    """Three clients of one secure aggregation, and the server's side of it by hand."""

    def __init__(self, **privacy):
        self.clients = {name: client_with(secure_aggregation=True, **privacy) for name in NAMES}
        self.states = dict.fromkeys(NAMES, ClientState())
        self.session = b"first"

    def request(self, name, request):
        reply, self.states[name] = self.clients[name].handle(request, self.states[name])
        return reply

    def setup_keys(self):
        self.keys = {name: self.request(name, SetupKeys(0, self.session)).keys for name in NAMES}
        return self

    def share_keys(self):
        self.sealed = {name: self.request(name, ShareKeys(0, self.session, self.keys)).sealed for name in NAMES}
        return self

    def estimate(self):
        for name in NAMES:
            self.request(name, Estimate(0, VISUAL, NAMES))
        return self

    def unmask(self, name, members=NAMES):
        return Unmask(0, self.session, {sender: self.sealed[sender][name] for sender in members})


def ready():
    return Sum().setup_keys().share_keys().estimate()


def test_a_sum_is_unmasked_only_once():
    group = ready()
    assert set(group.request("a", group.unmask("a")).shares) == set(NAMES)
    for again in (group.unmask("a"), group.unmask("a", ("a", "b"))):
        with pytest.raises(ValueError, match="a secure aggregation that has ended"):
            group.request("a", again)


def test_a_sum_is_unmasked_only_once_after_a_restart():
    group = ready()
    before = group.states["a"]
    group.request("a", group.unmask("a"))
    group.states["a"] = rewind(before, group.states["a"])
    with pytest.raises(ValueError, match="a secure aggregation that has ended"):
        group.request("a", group.unmask("a", ("a", "b")))
    # Even if its session were brought back, the keys themselves are known to be used.
    kept = state_from(state_tensors(group.states["a"]))
    group.states["a"] = replace(kept, secrets=replace(kept.secrets, session=before.secrets.session))
    with pytest.raises(ValueError, match="second Unmask request"):
        group.request("a", group.unmask("a", ("a", "b")))


def test_the_next_sum_has_new_keys():
    group = ready()
    group.request("a", group.unmask("a"))
    first, group.session = group.keys["a"], b"second"
    group.setup_keys().share_keys().estimate()
    assert group.keys["a"] != first
    assert set(group.request("a", group.unmask("a")).shares) == set(NAMES)
    assert len(group.states["a"].secrets.used_keys) == 2


def test_with_secure_aggregation_no_unmasked_reply_is_sent():
    client = client_with(secure_aggregation=True)
    with pytest.raises(ValueError, match=r"without masks, but privacy\.secure_aggregation is on"):
        client.handle(Estimate(0, VISUAL), ClientState())
    group = ready()
    group.request("a", Select(0, 0, TOTALS, 3))
    with pytest.raises(ValueError, match="without masks"):
        group.request("a", Train(0, VISUAL))


def test_keys_mask_only_one_reply():
    group = ready()
    group.request("a", Select(0, 0, TOTALS, 3))
    with pytest.raises(ValueError, match="without new keys"):
        group.request("a", Train(0, VISUAL, (), NAMES))


@pytest.mark.parametrize("message", [SetupKeys(0, b"x"), ShareKeys(0, b"x", {}), Unmask(0, b"x", {})])
def test_key_requests_without_secure_aggregation_are_refused(message):
    with pytest.raises(ValueError, match=r"privacy\.secure_aggregation is off"):
        client_with().handle(message, ClientState())


def test_a_request_for_another_session_is_refused():
    group = Sum().setup_keys()
    group.session = b"another"
    with pytest.raises(ValueError, match="has no keys"):
        group.share_keys()


def test_a_client_checks_min_sites_itself():
    group = Sum(min_sites=4).setup_keys()
    with pytest.raises(ValueError, match=r"a sum over 3 clients; privacy\.min_sites is 4"):
        group.share_keys()
    group = Sum(threshold=1.0).setup_keys().share_keys()
    with pytest.raises(ValueError, match="among 2 clients; 3 different ones are needed"):
        group.request("a", Estimate(0, VISUAL, ("a", "b")))
    group.estimate()
    with pytest.raises(ValueError, match="Unmask request for other clients than those of the masked reply"):
        group.request("a", group.unmask("a", ("a", "b")))


def test_all_sums_of_one_kind_in_a_run_have_the_members_of_the_first():
    group = ready()
    group.request("a", group.unmask("a"))
    group.session = b"second"
    group.setup_keys().share_keys()
    group.states["a"] = state_from(state_tensors(group.states["a"]))
    with pytest.raises(CannotReply, match="members of the secure aggregation changed since the first Estimate request"):
        group.request("a", Estimate(0, VISUAL, ("a", "b")))
    group.request("a", Estimate(0, VISUAL, NAMES))
    # A sum that was never unmasked revealed nothing, so its members may be left out of the next one.
    group.request("b", Estimate(0, VISUAL, ("a", "b")))


def test_masks_depend_on_the_prompts_of_the_request():
    # A server that sends one client something else gets a sum in which the masks do not cancel.
    group, other = Sum().setup_keys().share_keys(), {"visual": VISUAL["visual"] + 1}
    same = group.clients["a"].handle(Estimate(0, VISUAL, NAMES), group.states["a"])[0]
    again = group.clients["a"].handle(Estimate(0, VISUAL, NAMES), group.states["a"])[0]
    changed = group.clients["a"].handle(Estimate(0, other, NAMES), group.states["a"])[0]
    assert (same.masked == again.masked).all()
    assert (same.masked != changed.masked).all()


def test_secrets_are_stored_with_the_state():
    group = ready()
    group.request("b", group.unmask("b"))
    for state in (group.states["a"], group.states["b"], ClientState(secrets=Secrets(history="ab" * 32))):
        assert state_from(state_tensors(state)).secrets == state.secrets
    assert not [name for name in state_tensors(ClientState()) if "secret" in name]


# Noise


def test_equal_requests_get_equal_noise_and_others_other_noise():
    client = client_with(noise_multiplier=1.0)
    first, state = client.handle(Estimate(0, VISUAL), ClientState())
    again, _ = client.handle(Estimate(0, VISUAL), ClientState())
    later, _ = client.handle(Estimate(0, {"visual": VISUAL["visual"] + 1}), ClientState())
    assert first.counts.tolist() == again.counts.tolist() != later.counts.tolist()
    chosen, other = (client.handle(Select(0, 0, totals, 3), state)[1] for totals in (TOTALS, TOTALS + 1))
    # The model has changed in between: equal noise on both replies would reveal the difference.
    one, two, three = (
        client.handle(Train(0, VISUAL), before)[0].shared["visual"] for before in (chosen, other, chosen)
    )
    assert (one == three).all()
    assert (one != two).any()


def test_a_noisy_reply_is_repeated_although_the_model_changed():
    client = client_with(noise_multiplier=1.0)
    estimated, state = client.handle(Estimate(0, VISUAL), ClientState())
    client.learner.log_probs = client.learner.log_probs[::-1]
    again, _ = client.handle(Estimate(0, VISUAL), state)
    assert again.counts.tolist() == estimated.counts.tolist()
    *_, trained, state = trained_by(client)
    state = state_from(state_tensors(state))
    back, state = client.handle(
        Train(0, VISUAL), client.handle(Select(0, 0, TOTALS + 5, 3), state_with_later_secrets(state))[1]
    )
    assert back.shared["visual"].tobytes() == trained.shared["visual"].tobytes()
    assert (back.examples, math.isnan(back.loss), back.shared["visual"].dtype) == (1, True, np.float32)


def state_with_later_secrets(state):
    """Return the state after Estimate, with the secrets of a later state."""
    return rewind(client_with(noise_multiplier=1.0).handle(Estimate(0, VISUAL), ClientState())[1], state)


@pytest.mark.parametrize("message", [Estimate(5, VISUAL), Train(0, VISUAL), Train(5, VISUAL)])
def test_a_second_different_request_in_a_round_is_refused(message):
    client = client_with(noise_multiplier=1.0)
    *_, state = trained_by(client)
    _, state = client.handle(message, state)
    other = replace(message, shared={"visual": VISUAL["visual"] + 1})
    with pytest.raises(
        CannotReply, match=f"the earlier one in round {message.round + 1}: with noise a client replies once"
    ):
        client.handle(other, state)
    with pytest.raises(CannotReply):
        client.handle(replace(other, round=0), state)  # nor one of a round that is over


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (Estimate(20, VISUAL), "Estimate request in round 21, but the run has 20"),
        (Train(20, VISUAL), "Train request in round 21, but the run has 20"),
        (Estimate(3, VISUAL), "Estimate request in round 4, in which labels are not refreshed"),
    ],
)
def test_requests_outside_the_accounting_are_refused(message, line):
    for privacy in ({}, {"secure_aggregation": True}):
        with pytest.raises(CannotReply, match=line):
            client_with(noise_multiplier=1.0, **privacy).handle(message, ClientState())


def test_without_noise_replies_are_not_limited():
    client, state = client_with(), ClientState()
    for message in (Estimate(3, VISUAL), Estimate(3, {"visual": VISUAL["visual"] + 1}), Estimate(3, VISUAL)):
        reply, state = client.handle(message, state)
        assert reply.counts is not None
    assert state.secrets == Secrets()


def test_noise_depends_on_client_and_settings():
    def replied(**how):
        return (
            client_with(**{"noise_multiplier": 1.0, **how})
            .handle(Estimate(0, VISUAL), ClientState())[0]
            .counts.tolist()
        )

    assert replied() == replied()
    assert replied(secret=bytes(32)) != replied()
    assert replied(delta=1e-6) != replied()  # any other setting: a server must not get two replies with equal noise


@pytest.mark.parametrize("message", [Estimate(0, VISUAL), Train(0, VISUAL)])
def test_without_a_secret_noise_is_refused(message):
    client = client_with(secret=b"", noise_multiplier=1.0)
    state = client_with(noise_multiplier=1.0).handle(Estimate(0, VISUAL), ClientState())[1]
    state = client.handle(Select(0, 0, TOTALS, 3), replace(state, secrets=Secrets()))[1]
    with pytest.raises(ValueError, match="has no secret of at least 16 bytes"):
        client.handle(message, state)


def trained_by(client):
    _, state = client.handle(Estimate(0, VISUAL), ClientState())
    selected, state = client.handle(Select(0, 0, TOTALS, 3), state)
    return selected, *client.handle(Train(0, VISUAL), state)


def test_a_client_without_training_images_sends_noise_too():
    for images in (0, 12):
        selected, reply, _ = trained_by(client_with(noise_multiplier=1.0, images=images))
        assert selected.examples is None
        assert reply.examples == 1
        assert math.isnan(reply.loss)
        assert reply.shared["visual"].dtype == np.float32
        assert (reply.shared["visual"] != VISUAL["visual"]).all()


def test_personal_prompts_have_no_noise():
    client = client_with(noise_multiplier=1.0)
    client.learner.number = 7
    assert (trained_by(client)[2].own["text"] == 7).all()


def test_counts_are_clipped_and_noised_around_the_truth():
    exact = client_with().handle(Estimate(0, VISUAL), ClientState())[0].counts
    clip = float(np.linalg.norm(exact)) / 2
    replied = [
        client_with(secret=bytes([n]) * 32, noise_multiplier=1.0, count_clip=clip).handle(
            Estimate(0, VISUAL), ClientState()
        )
        for n in range(200)
    ]
    counts = np.array([reply.counts for reply, _ in replied])
    assert counts.mean(axis=0) == pytest.approx(exact / 2, abs=4 * clip / math.sqrt(200))
    assert counts.std(axis=0) == pytest.approx(np.full(3, clip), rel=0.25)
    assert (counts < 0).any()
    assert all((state.counts == exact).all() for _, state in replied)  # the client itself uses its exact counts


def test_diverged_prompts_are_not_sent():
    class Diverging(FakeLearner):
        def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
            return prompts | {"visual": prompts["visual"] * np.float32(np.nan)}, math.nan

    client = replace(client_with(noise_multiplier=1.0), learner=Diverging())
    with pytest.raises(ValueError, match="training diverged"):
        trained_by(client)


def test_noise_below_the_grid_is_refused():
    with pytest.raises(ValueError, match="the noise is too small to be split"):
        client_with(noise_multiplier=1e-9).handle(Estimate(0, VISUAL), ClientState())


# Requests and settings


def test_refusals_are_cannot_reply_errors():
    # One of each layer: client, private replies, masking. Unexpected errors have another type.
    group = ready()
    with pytest.raises(CannotReply, match="Train request before a Select request"):
        client_with().handle(Train(0, VISUAL), ClientState())
    with pytest.raises(CannotReply, match=r"privacy\.secure_aggregation is off"):
        client_with().handle(SetupKeys(0, b"x"), ClientState())
    with pytest.raises(CannotReply, match="Unmask request for other clients"):
        group.request("a", group.unmask("a", ("a",)))
    large = Train(0, {"visual": np.full((2, 3), 1e9, np.float32)}, (), NAMES)
    with pytest.raises(CannotReply, match="a prompt has a value beyond"):
        group.clients["a"].handle(large, selected_by(Sum().setup_keys().share_keys()))
    client = client_with()
    client.learner.train = lambda *_: np.zeros(3) + np.zeros(4)
    with pytest.raises(ValueError, match="broadcast") as accident:
        trained_by(client)
    assert not isinstance(accident.value, CannotReply)


def selected_by(group):
    _, state = client_with().handle(Estimate(0, VISUAL), ClientState())
    _, state = client_with().handle(Select(0, 0, TOTALS, 3), state)
    return replace(state, secrets=group.states["a"].secrets)


def test_a_digest_depends_on_every_field_of_a_request():
    requests = [
        Train(0, VISUAL),
        Train(1, VISUAL),
        Train(0, {"text": VISUAL["visual"]}),
        Train(0, {"visual": VISUAL["visual"].T.copy()}),
        Train(0, {"visual": VISUAL["visual"] + 1}),
        Train(0, VISUAL, (VISUAL,)),
        Train(0, VISUAL, (), ("a", "b")),
        Train(0, VISUAL, (), ("ab",)),
        Estimate(0, VISUAL),
        Select(0, 0, None, 1),
        Select(0, 0, TOTALS, 1),
        SetupKeys(0, b"x"),
    ]
    assert len({digest(message) for message in requests}) == len(requests)
    both = {"visual": VISUAL["visual"], "text": START["text"]}
    assert digest(Train(0, both)) == digest(Train(0, dict(reversed(both.items()))))
    assert digest(Train(0, VISUAL)) == digest(Train(0, {"visual": VISUAL["visual"].copy()}))


@pytest.mark.parametrize(
    "wrong", [{"threshold": 0.5}, {"min_sites": 1}, {"noise_multiplier": -1.0}, {"delta": 0.0}, {"count_clip": 0.0}]
)
def test_settings_without_protection_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"privacy.{next(iter(wrong))}: "):
        RunConfig.from_mapping({"privacy": wrong}, "test")


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedcopl\[privacy\]'"):
        require_cryptography()
