"""Whole rounds with secure aggregation and with noise, over clients that are small enough to follow by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fakes import CLASSES, NO_PRIORS, START, FakeLearner, FakeTestSet, FlakyFederation, NoisyLearner, run, start
from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError, NoClientReplied
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import state_from, state_tensors
from fedcopl.federation.server import _participants, run_round
from fedcopl.messages import Estimated, KeyShares, PublicKeys, Trained, Unmasked
from fedcopl.privacy.mask_session import KEYS, SEALED, SHARE
from fedcopl.rng import stream
from fedcopl.simulation.simulate import LocalTransport

SECURE = {"secure_aggregation": True}


def config_of(privacy, rounds=4, **sections):
    return RunConfig.from_mapping({"rounds": rounds, "privacy": privacy, "priors": NO_PRIORS, **sections}, "test")


def clients_of(config, kind=NoisyLearner, count=5, seed=0):
    secrets = [stream(seed, "secret", number).bytes(32) for number in range(count)]
    return {
        f"client-{i}": Client(kind(i), config, FakeTestSet(6 + i, 12), secrets[i], repeatable=True)
        for i in range(count)
    }


def run_all(config, federation, state=None):
    reports = []
    last = run(config, federation, state or start(), lambda state, report: reports.append(report))
    return last, reports


class Lossy(LocalTransport):
    """Loses replies after the client has worked them out, and alters others; kind -> clients."""

    def __init__(self, clients):
        super().__init__(clients)
        self.lost, self.altered = {}, {}

    def request(self, requests):
        kind = type(next(iter(requests.values()))).__name__ if requests else ""
        replies = super().request(requests)
        altered = {
            client: self.altered.get((client, kind), lambda reply: reply)(reply) for client, reply in replies.items()
        }
        return {client: reply for client, reply in altered.items() if client not in self.lost.get(kind, ())}


# Secure aggregation


def test_a_secure_run_is_the_plain_run():
    plain, secure = (config_of(privacy, rounds=7, labels={"refresh_every": 3}) for privacy in ({}, SECURE))
    federations = [LocalTransport(clients_of(config)) for config in (plain, secure)]
    one, other = (run_all(config, federation) for config, federation in zip((plain, secure), federations, strict=True))
    for before, after in zip(one[1], other[1], strict=True):
        assert (before.totals is None) == (after.totals is None)
        assert before.totals is None or (before.totals == after.totals).all()
        assert before.participants == after.participants
        assert (before.examples, before.batches) == (after.examples, after.batches)
        assert after.loss == pytest.approx(before.loss, abs=2**-32)
        assert after.updates == {}
    # Each average is the plain one to 2^-33, and then the same to a rounding of float32; training passes 0.9 of it on.
    error = 7 * (2**-33 + 2**-23 * float(np.abs(one[0].shared["visual"]).max()))
    assert other[0].shared["visual"] == pytest.approx(one[0].shared["visual"], abs=error)
    for name, state in federations[0].states.items():
        assert (state.selection.index == federations[1].states[name].selection.index).all()


def test_nothing_but_masked_numbers_is_sent():
    class Watched(LocalTransport):
        def request(self, requests):
            replies = super().request(requests)
            seen.extend(replies.values())
            return replies

    seen = []
    config = config_of(SECURE, rounds=1)
    run_all(config, Watched(clients_of(config)))
    estimated = [reply for reply in seen if isinstance(reply, Estimated)]
    trained = [reply for reply in seen if isinstance(reply, Trained)]
    assert len(estimated) == len(trained) == 5
    assert all(reply.counts is None for reply in estimated)
    assert all(reply.shared == {} and reply.examples == 0 and math.isnan(reply.loss) for reply in trained)
    assert all(getattr(reply, "examples", None) is None for reply in seen if type(reply).__name__ == "Selected")
    # A count is below 20; under its masks it is anywhere up to 2^64.
    assert np.median([reply.masked for reply in estimated]) > 2**60


def test_bytes_are_those_of_the_messages():
    config = config_of(SECURE, rounds=2)
    _, [first, second] = run_all(config, LocalTransport(clients_of(config)))
    n, prompt, names, name = 5, START["visual"].size, 5 * len("client-0"), 16
    keys = n * KEYS + n * n * SEALED + n * n * SHARE
    assert second.bytes_up == keys + n * (8 * (10 + prompt) + 16) + n * 16  # examples and loss, empty; and the scores
    assert first.bytes_up - second.bytes_up == keys + n * 8 * CLASSES
    down = n * (8 + name) + n * (8 + name + n * KEYS) + n * (8 + name + n * SEALED)
    assert second.bytes_down == down + n * (8 + 4 * prompt + names) + n * (8 + 4 * prompt)


STAGES = ("SetupKeys", "ShareKeys", "Estimate", "Unmask")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("lost", [("client-0",), ("client-1", "client-4")])
def test_the_first_refresh_continues_without_lost_clients(stage, lost):
    config = config_of(SECURE, rounds=1)
    federation = Lossy(clients_of(config))
    federation.lost = {stage: lost}
    state, report = run_round(config, federation, start())
    counted = [name for name in federation.states if name not in lost or stage == "Unmask"]
    counts = np.sum([federation.states[name].counts for name in counted], axis=0)
    assert (report.totals == counts).all()
    assert state.members == tuple(counted)  # who helped no more is in the sum all the same


@pytest.mark.parametrize("stage", ["SetupKeys", "ShareKeys", "Train", "Unmask"])
def test_a_round_that_lacks_a_member_has_no_average_and_the_next_one_has(stage):
    class Constant(FakeLearner):
        def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
            return prompts | {"visual": np.full((2, 3), 2.0**self.number, np.float32)}, float(self.number)

    config = config_of(SECURE, rounds=3, train={"holdout": 0}, labels={"refresh_every": 3})
    federation = Lossy(clients_of(config, Constant))
    first, _ = run_round(config, federation, start())
    federation.lost = {stage: ("client-2", "client-3")}
    second, report = run_round(config, federation, first)
    if stage == "Unmask":  # their replies have arrived, and the others' shares are enough
        assert len(report.participants) == 5
    else:
        words = "Train: lost; the secure aggregation needs all of its members"
        assert report.dropped == dict.fromkeys(["client-2", "client-3"], words)
        assert report.participants == ()
        assert report.kept_old_prompt
        assert second.shared is first.shared
    federation.lost = {}
    third, report = run_round(config, federation, second)
    chosen = [len(federation.states[f"client-{i}"].selection.index) for i in range(5)]
    assert len(report.participants) == 5
    assert report.examples == sum(chosen)
    mean = np.average([2.0**i for i in range(5)], weights=chosen)
    assert third.shared["visual"] == pytest.approx(np.full((2, 3), mean))


@pytest.mark.parametrize("stage", ["SetupKeys", "ShareKeys", "Estimate", "Select"])
def test_a_refresh_that_lacks_a_member_is_repeated_when_it_is_back(stage):
    config = config_of(SECURE, rounds=2, labels={"refresh_every": 1})
    federation = Lossy(clients_of(config))
    state, _ = run_round(config, federation, start())
    federation.lost = {stage: ("client-2",)}
    with pytest.raises(NoClientReplied, match=r"client-2 did not reply, and all secure .* the same members; continue"):
        run_round(config, federation, state)
    federation.lost = {}
    state, report = run_round(config, federation, state)
    assert report.participants == state.members == tuple(f"client-{i}" for i in range(5))


def test_with_partial_participation_fixed_cohorts_take_turns():
    config = config_of(SECURE, rounds=4, sharing={"participation": 0.4})
    _, reports = run_all(config, LocalTransport(clients_of(config)))
    cohorts = [set(report.participants) for report in reports]
    assert cohorts[0] == cohorts[2] and cohorts[1] == cohorts[3]
    assert cohorts[0] | cohorts[1] == {f"client-{i}" for i in range(5)}
    assert not cohorts[0] & cohorts[1]
    assert sorted(map(len, cohorts[:2])) == [2, 3]


def test_a_cohort_has_at_least_min_sites_members():
    config = config_of({**SECURE, "min_sites": 3}, sharing={"participation": 0.01})
    members = tuple(map(str, range(10)))
    cohorts = [_participants(config, members, round) for round in range(3)]
    assert sorted(map(len, cohorts)) == [3, 3, 4]
    assert sorted(sum(cohorts, ())) == sorted(members)


def test_a_method_in_which_all_clients_train_first_cannot_have_cohorts():
    config = config_of(SECURE, sharing={"participation": 0.5})
    with pytest.raises(ConfigError, match=r"sharing\.participation: method=fedcopl has all clients train in the first"):
        run_round(config, LocalTransport(clients_of(config)), replace(start(), full_first_round=True))


@pytest.mark.parametrize(
    ("stage", "enough"), [("SetupKeys", 2), ("ShareKeys", 3), ("Estimate", 3), ("Unmask", 3), ("Train", 3)]
)
def test_too_few_replies_end_the_round_with_the_reason(stage, enough):
    config = config_of(SECURE, rounds=1)
    federation = Lossy(clients_of(config))
    federation.lost = {stage: [f"client-{i}" for i in range(5 - enough + 1)]}
    left = f"{enough - 1} client{'s' * (enough > 2)}"
    message = f"round 1, step {stage}: {left} replied, but a secure aggregation needs {enough} "
    with pytest.raises(NoClientReplied, match=message):
        run_round(config, federation, start())


def test_a_sum_over_one_client_is_refused():
    config = config_of(SECURE, rounds=1)
    with pytest.raises(NoClientReplied, match="step SetupKeys: 1 client replied, but a secure aggregation needs 2"):
        run_round(config, LocalTransport(clients_of(config, count=1)), start())
    config = config_of({**SECURE, "min_sites": 4}, rounds=1)
    federation = Lossy(clients_of(config))
    federation.lost = {"Estimate": ["client-0", "client-1"]}
    with pytest.raises(NoClientReplied, match="step Estimate: 3 clients replied, but a secure aggregation needs 4"):
        run_round(config, federation, start())


def test_two_clients_suffice_without_losses():
    config = config_of(SECURE, rounds=2)
    federation = LocalTransport(clients_of(config, count=2))
    _, reports = run_all(config, federation)
    counts = np.sum([state.counts for state in federation.states.values()], axis=0)
    assert (reports[0].totals == counts).all()


INVALID = {
    ("SetupKeys", "not three public keys"): PublicKeys(b"short"),
    ("SetupKeys", "its keys are not three"): PublicKeys(bytes(KEYS)),  # a point that no key can be agreed with
    ("ShareKeys", "not those requested"): KeyShares({"another client": bytes(SEALED)}),
    ("ShareKeys", "shares are missing"): KeyShares({}),
    ("Estimate", "not 3 integers"): Estimated(None, np.zeros(4, np.uint64)),
    ("Estimate", "its masked reply is not"): Estimated(np.zeros(3, np.int64)),
    ("Train", "not 16 integers"): Trained({}, 0, math.nan, np.zeros(10, np.int64)),
    ("Train", "its masked reply is not"): Trained(START, 3, 0.1),
    ("Unmask", "not those requested"): Unmasked({"client-0": b"short"}),
    ("Unmask", "replied to Unmask with PublicKeys"): PublicKeys(bytes(KEYS)),
}


@pytest.mark.parametrize(("where", "invalid"), INVALID.items())
def test_an_invalid_reply_is_dropped_and_its_client_named(where, invalid):
    stage, why = where
    config = config_of(SECURE, rounds=1)
    federation = FlakyFederation(clients_of(config))
    federation.spoiled = {("client-1", stage, 0): invalid}
    _, report = run_round(config, federation, start())
    assert list(report.dropped) == ["client-1"]
    assert why in report.dropped["client-1"]


def test_two_clients_with_one_key():
    config = config_of(SECURE, rounds=1)
    federation, seen = Lossy(clients_of(config)), []
    federation.altered = {
        ("client-1", "SetupKeys"): lambda reply: seen.append(reply) or reply,
        ("client-3", "SetupKeys"): lambda _: seen[-1],
    }
    _, report = run_round(config, federation, start())
    assert report.dropped == {"client-3": "SetupKeys: sent the keys of another client"}


def test_senders_of_wrong_shares_are_named():
    config = config_of(SECURE, rounds=1)
    federation, honest = Lossy(clients_of(config)), LocalTransport(clients_of(config))
    federation.altered = {("client-1", "Unmask"): lambda reply: Unmasked(dict.fromkeys(reply.shares, bytes(SHARE)))}
    one, report = run_round(config, federation, start())
    other, _ = run_round(config, honest, start())
    assert report.dropped == {"client-1": "Unmask: sent wrong shares of other clients' keys (2 times)"}
    assert (one.shared["visual"] == other.shared["visual"]).all()


def test_masks_that_cannot_be_removed_end_the_round_with_the_reason():
    config = config_of({**SECURE, "threshold": 1.0}, rounds=1)
    federation = Lossy(clients_of(config))
    federation.altered = {("client-3", "Unmask"): lambda reply: Unmasked(dict.fromkeys(reply.shares, bytes(SHARE)))}
    with pytest.raises(
        NoClientReplied, match="step Unmask: client-0: its masks cannot be removed: the shares of 5 clients"
    ):
        run_round(config, federation, start())


def spoiling(clients, spoilers, sums=None):
    """A federation in which some send invalid shares, in all their secure aggregation or in those of these numbers."""
    federation = Lossy(clients)
    for spoiler in spoilers:
        shared_out = iter(range(1000))

        def junk(reply, shared_out=shared_out):
            spoils = sums is None or next(shared_out) in sums
            return KeyShares(dict.fromkeys(reply.sealed, bytes(SEALED))) if spoils else reply

        federation.altered[spoiler, "ShareKeys"] = junk
    return federation


def trainings(federation):
    """How often each client has trained: with a `FakeLearner` its text prompt moves by its number each time."""
    return {name: len(client.learner.train_calls) for name, client in federation._clients.items()}


SPOILT = "secure aggregation: its masks cannot be removed: the shares of 0 clients are inconsistent"


@pytest.mark.parametrize("spoilers", [["client-1"], ["client-1", "client-3"]])
def test_counts_whose_masks_cannot_be_removed_end_the_run_and_name_the_client(spoilers):
    config = config_of(SECURE, rounds=1)
    federation = spoiling(clients_of(config), spoilers)
    message = r"step Unmask: client-1: its masks cannot be removed: .*; begin a new run without that client"
    with pytest.raises(NoClientReplied, match=message):
        run_round(config, federation, start())


def test_training_whose_masks_cannot_be_removed_has_no_average_and_the_next_round_has():
    # The first sum, of the counts, is valid; the second, of the prompts, is not.
    config = config_of(SECURE, rounds=3)
    federation = spoiling(clients_of(config, FakeLearner), ["client-1"], sums={1})
    last, reports = run_all(config, federation)
    assert [report.kept_old_prompt for report in reports] == [True, False, False]
    assert [len(report.participants) for report in reports] == [0, 5, 5]
    assert math.isnan(reports[0].loss)
    assert [report.dropped for report in reports] == [{"client-1": SPOILT}, {}, {}]
    assert (last.shared["visual"] == 2).all()  # one a round, but for the first
    assert set(trainings(federation).values()) == {3}
    assert (federation.states["client-2"].own["text"] == 2 * 3).all()


def test_only_unmasked_sums_are_accounted():
    config = config_of({**SECURE, "noise_multiplier": 1.5}, rounds=2, labels={"refresh_every": 2})
    federation = spoiling(clients_of(config), ["client-1"], sums={1})
    _, reports = run_all(config, federation)
    assert [[release.of for release in report.releases] for report in reports] == [["counts"], ["prompts"]]
    assert {(release.noise, len(release.clients)) for report in reports for release in report.releases} == {(1.5, 5)}


def test_an_invalid_masked_update_is_detected_without_its_sender():
    config = config_of(SECURE, rounds=1)
    federation = Lossy(clients_of(config))
    federation.altered = {("client-3", "Train"): lambda reply: replace(reply, masked=reply.masked[::-1])}
    with pytest.raises(
        NoClientReplied, match=r"step Train: .*the sender cannot be identified under secure aggregation"
    ):
        run_round(config, federation, start())


def test_a_method_that_needs_single_prompts_is_refused():
    config = config_of(SECURE, rounds=1, method="pfedmoap")
    with pytest.raises(
        ConfigError, match=r"privacy\.secure_aggregation: method=pfedmoap sends clients each other's prompts"
    ):
        run_round(config, LocalTransport(clients_of(config)), replace(start(), neighbours=2))


def test_without_shared_counts_only_training_is_masked():
    config = config_of(SECURE, rounds=1, labeler="fpl")
    federation = FlakyFederation(clients_of(config))
    _, report = run_round(config, federation, start())
    assert report.totals is None
    assert [kind for client, kind, _ in federation.requested if client == "client-0"] == [
        *("Estimate", "Select", "SetupKeys", "ShareKeys", "Train", "Unmask", "Evaluate")
    ]


def test_without_shared_prompts_the_loss_is_still_sent():
    config = config_of(SECURE, rounds=1, sharing={"aggregate": "none"})
    state, report = run_round(config, LocalTransport(clients_of(config)), start("none"))
    assert state.shared == {}
    assert report.loss > 0


def test_no_client_has_images_to_train_on():
    config = config_of(SECURE, rounds=1, labels={"unseen": "none"})
    federation = LocalTransport(clients_of(config, lambda i: FakeLearner(i, images=0)))
    state, report = run_round(config, federation, start())
    assert report.kept_old_prompt
    assert state.shared["visual"] is START["visual"]


# Noise


@pytest.mark.parametrize("secure", [False, True])
def test_a_resumed_run_has_the_same_bits(secure):
    config = config_of({"secure_aggregation": secure, "noise_multiplier": 0.5}, rounds=5, labels={"refresh_every": 3})
    whole, _ = run_all(config, LocalTransport(clients_of(config)))
    first, state = LocalTransport(clients_of(config)), start()
    for _ in range(2):
        state, _ = run_round(config, first, state)
    kept = {name: state_from(state_tensors(one)) for name, one in first.states.items()}
    resumed, _ = run_all(config, LocalTransport(clients_of(config), kept), state)
    assert (resumed.shared["visual"] == whole.shared["visual"]).all()


@pytest.mark.parametrize(("secure", "same"), [(False, True), (True, False)])
def test_a_repeated_round_of_a_deployed_site(secure, same):
    # Without masks, equal requests get equal replies. Two secure sums may differ in the lost clients, and
    # with the same noise in both, their difference would be that client's numbers with only its own part of it.
    config = config_of({"secure_aggregation": secure, "noise_multiplier": 0.5}, rounds=1)
    real = {name: replace(client, repeatable=False) for name, client in clients_of(config).items()}
    one, other = (run_round(config, LocalTransport(real), start())[0].shared["visual"] for _ in range(2))
    assert (one == other).all() == same


@pytest.mark.parametrize("secure", [False, True])
def test_with_noise_loss_and_sizes_are_not_sent(secure):
    config = config_of({"secure_aggregation": secure, "noise_multiplier": 1.0}, rounds=2)
    _, reports = run_all(config, LocalTransport(clients_of(config)))
    assert all(math.isnan(report.loss) and report.examples == report.batches == 0 for report in reports)


def test_each_release_is_accounted():
    config = config_of({"noise_multiplier": 1.5}, rounds=4, labels={"refresh_every": 2})
    _, reports = run_all(config, LocalTransport(clients_of(config)))
    assert [[release.of for release in report.releases] for report in reports] == [
        ["counts", "prompts"],
        ["prompts"],
    ] * 2
    everyone = tuple(f"client-{i}" for i in range(5))
    assert {(release.noise, release.clients) for report in reports for release in report.releases} == {(1.5, everyone)}


def test_a_repeated_first_sum_has_all_of_its_noise():
    config = config_of({**SECURE, "noise_multiplier": 1.5}, rounds=1)
    federation = Lossy(clients_of(config))
    federation.lost = {"Estimate": ["client-2"]}
    _, report = run_round(config, federation, start())
    counts, prompts = report.releases
    assert (counts.noise, prompts.noise) == (1.5, 1.5)
    assert counts.clients == prompts.clients == ("client-0", "client-1", "client-3", "client-4")


@pytest.mark.parametrize(
    ("sections", "releases"),
    [
        ({"labeler": "fpl"}, [["prompts"]]),
        ({"labels": {"global_allocation": False}}, [["prompts"]]),
        ({"sharing": {"aggregate": "none"}}, [["counts"]]),
    ],
)
@pytest.mark.parametrize("secure", [False, True])
def test_numbers_that_are_not_sent_are_not_accounted(sections, releases, secure):
    config = config_of({"noise_multiplier": 1.0, "secure_aggregation": secure}, rounds=1, **sections)
    federation = LocalTransport(clients_of(config))
    _, reports = run_all(config, federation, start(sections.get("sharing", {}).get("aggregate", "visual")))
    assert [[release.of for release in report.releases] for report in reports] == releases


def test_without_noise_nothing_is_accounted():
    config = config_of(SECURE, rounds=1)
    assert run_all(config, LocalTransport(clients_of(config)))[1][0].releases == []


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_in_the_sum_is_as_wide_as_stated(secure):
    # 2,000 numbers that change by a length of 0.5 altogether: all that is seen of a single one is noise.
    config = config_of({"secure_aggregation": secure, "noise_multiplier": 2.0, "update_clip": 0.5}, rounds=1)
    many = replace(start(), shared={"visual": np.zeros((50, 40), np.float32)})
    state, _ = run_round(config, LocalTransport(clients_of(config)), many)
    together = 1 if secure else math.sqrt(5)  # plainly, each client adds all of the noise
    assert state.shared["visual"].std() == pytest.approx(2.0 * 0.5 * together / 5, rel=0.05)


def test_with_noise_weights_are_equal_and_updates_clipped():
    class Far(FakeLearner):
        def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
            return prompts | {"visual": prompts["visual"] + np.float32(3 * (1 - 2 * (self.number == 0)))}, 0.5

    # 5, 25 and 45 images are less than 100, and the noise of their counts, 100 / 10,000, is nothing: all classes stay.
    config = config_of({"noise_multiplier": 1e-4, "update_clip": math.sqrt(6), "count_clip": 100.0}, rounds=1)
    federation = LocalTransport(clients_of(config, lambda i: Far(i, images=5 + 20 * i), count=3))
    state, _ = run_round(config, federation, start())
    # Each change has 6 numbers of 3, of length 3 sqrt(6): clipped to 1 each. One goes down, two up: 1/3 on average.
    assert state.shared["visual"] == pytest.approx(np.full((2, 3), 1 / 3), abs=0.01)
