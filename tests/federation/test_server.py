"""The server's run over clients that are small enough to follow by hand."""

import json
import math
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fakes import (
    CLASSES,
    NO_PRIORS,
    START,
    CoupledLearner,
    FakeLearner,
    FlakyFederation,
    NoisyLearner,
    clients,
    run,
    start,
)
from fedcopl.algorithm.allocate import quota
from fedcopl.config import RunConfig
from fedcopl.errors import ClientFailed, NoClientReplied
from fedcopl.federation.client_state import ClientState
from fedcopl.federation.server import (
    _has_converged,
    _labelling,
    _participants,
    _stale_rounds,
    evaluate_zero_shot,
    run_round,
)
from fedcopl.federation.transport import Labelling
from fedcopl.federation.validation import validate_reply
from fedcopl.messages import (
    Estimate,
    Estimated,
    Evaluate,
    Evaluated,
    Select,
    Selected,
    Train,
    Trained,
    payload_bytes,
)
from fedcopl.privacy.masked_layout import LARGEST_PROMPT, HoldoutSums
from fedcopl.simulation.simulate import LocalTransport


def config_of(rounds=4, **sections):
    return RunConfig.from_mapping({"rounds": rounds, "priors": NO_PRIORS, **sections}, "test")


def ignore(state, report):
    pass


def reports_of(config, federation, state=None):
    reports = []
    last = run(config, federation, state or start(), lambda state, report: reports.append(report))
    return last, reports


def test_a_run_by_hand():
    config = config_of()
    last, reports = reports_of(config, LocalTransport(clients(config)))
    assert last.round == 4
    assert (last.shared["visual"] == 4).all()  # every client adds 1 a round, so the mean does too
    assert [report.refreshed for report in reports] == [True, False, False, False]
    assert reports[0].scores == {"client-0": (6, 12), "client-1": (7, 12), "client-2": (8, 12)}
    assert reports[0].loss == 0.5


def test_refresh_is_every_q_rounds_from_the_first():
    config = config_of(rounds=7, labels={"refresh_every": 3})
    _, reports = reports_of(config, LocalTransport(clients(config)))
    assert [report.round for report in reports if report.refreshed] == [0, 3, 6]


def test_quotas_of_clients_are_rows_of_the_table():
    config = config_of(rounds=1)
    federation = LocalTransport(clients(config, NoisyLearner))
    _, [report] = reports_of(config, federation)
    counts = np.stack([state.counts for state in federation.states.values()])
    assert report.totals.tolist() == counts.sum(axis=0).tolist()
    rows = [state.quota.tolist() for state in federation.states.values()]
    assert (
        rows == quota(counts, counts.sum(axis=0), len(counts), refresh_index=0, budget="exact", unseen="grow").tolist()
    )


def test_average_is_weighted_by_selected_images():
    class Constant(FakeLearner):
        def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
            return prompts | {"visual": np.full((2, 3), self.number, np.float32)}, 0.0

    config = config_of(rounds=1, train={"holdout": 0})
    federation = LocalTransport(clients(config, lambda i: Constant(i, images=5 + 20 * i)))
    last, _ = reports_of(config, federation)
    chosen = [len(state.selection.index) for state in federation.states.values()]
    expected = (chosen[1] * 1 + chosen[2] * 2) / sum(chosen)
    assert last.shared["visual"] == pytest.approx(np.full((2, 3), expected))


@pytest.mark.parametrize("aggregate", ["visual", "text", "both", "none"])
def test_only_shared_arrays_are_sent(aggregate):
    config = config_of(rounds=2, sharing={"aggregate": aggregate})
    federation = LocalTransport(clients(config))
    last, reports = reports_of(config, federation, start(aggregate))
    sent = set(start(aggregate).shared)
    assert set(last.shared) == sent
    assert all(set(update) == sent for report in reports for update in report.updates.values())
    assert all(set(state.own) == {"visual", "text"} - sent for state in federation.states.values())


def test_participants_are_drawn_without_replacement():
    config = config_of(sharing={"participation": 0.5})
    members = tuple(f"client-{i}" for i in range(5))
    drawn = [_participants(config, members, round) for round in range(40)]
    assert {len(set(some)) for some in drawn} == {2}  # floor(0.5 * 5)
    assert all(list(some) == sorted(some) for some in drawn)
    assert set().union(*drawn) == set(members)
    assert drawn == [_participants(config, members, round) for round in range(40)]
    assert len(_participants(config_of(sharing={"participation": 0.01}), members, 0)) == 1
    hundred = tuple(f"client-{i:02}" for i in range(100))
    assert len(_participants(config_of(sharing={"participation": 0.29}), hundred, 0)) == 29  # not 28.999...


def test_non_participants_are_labelled_and_evaluated():
    config = config_of(rounds=1, sharing={"participation": 0.4})
    federation = LocalTransport(clients(config))
    last, [report] = reports_of(config, federation)
    assert len(report.participants) == 1
    idle = [s for name, s in federation.states.items() if name not in report.participants]
    assert all(not state.own and state.selection is not None for state in idle)
    assert len(report.scores) == 3
    assert len(last.members) == 3


def test_no_client_has_training_images():
    config = config_of(rounds=1, labels={"unseen": "none"})
    federation = LocalTransport(clients(config, lambda i: FakeLearner(i, images=0)))
    last, [report] = reports_of(config, federation)
    assert report.kept_old_prompt
    assert last.shared["visual"] is START["visual"]


def test_zero_shot_requests_have_no_prompts():
    assert evaluate_zero_shot(LocalTransport(clients(config_of()))).scores == {f"client-{i}": (0, 12) for i in range(3)}


def test_last_round_is_always_evaluated():
    config = config_of(rounds=5, evaluation={"every": 2})
    _, reports = reports_of(config, LocalTransport(clients(config)))
    assert [bool(report.scores) for report in reports] == [False, True, False, True, True]


def test_bytes_are_those_of_the_messages():
    config = config_of(rounds=2, train={"holdout": 0})
    _, [first, second] = reports_of(config, LocalTransport(clients(config)))
    prompt = START["visual"].nbytes
    # round, prompt down for Train and Evaluate; prompt, examples, loss up for Trained; two for Evaluated
    assert second.bytes_down == 3 * 2 * (8 + prompt)
    assert second.bytes_up == 3 * (prompt + 16 + 16)
    assert first.bytes_up - second.bytes_up == 3 * (8 * CLASSES + 16)  # counts; how many were chosen, of how many
    assert payload_bytes(Evaluated(1, 2)) == 16


def test_resumed_run_has_the_same_bits():
    config = config_of(rounds=7, labels={"refresh_every": 3})
    whole, _ = reports_of(config, LocalTransport(clients(config, NoisyLearner)))
    first = LocalTransport(clients(config, NoisyLearner))
    state = start()
    for _ in range(4):
        state, _ = run_round(config, first, state)
    second = LocalTransport(clients(config, NoisyLearner), first.states)
    resumed = run(config, second, state, ignore)
    assert (resumed.shared["visual"] == whole.shared["visual"]).all()


def test_order_of_clients_does_not_change_a_client():
    config = config_of(rounds=3)
    one, other = (LocalTransport(dict(order(clients(config, NoisyLearner).items()))) for order in (list, reversed))
    run(config, one, start("none"), ignore)
    run(config, other, start("none"), ignore)
    for name, state in one.states.items():
        assert (state.own["text"] == other.states[name].own["text"]).all()


def test_failing_client_is_named():
    config = config_of()
    broken = clients(config)
    broken["client-1"].learner.log_probs = None
    with pytest.raises(ClientFailed, match="client client-1 failed in round 1, step Estimate: "):
        run(config, LocalTransport(broken), start(), ignore)


def test_no_client_connected():
    with pytest.raises(NoClientReplied, match="no client is connected"):
        run(config_of(), LocalTransport({}), start(), ignore)


def test_client_without_estimate_waits_for_next_refresh():
    config = config_of(rounds=6)
    federation = FlakyFederation(clients(config))
    federation.lost = {("client-2", "Estimate", 0)}
    run(config, federation, start(), ignore)
    assert [round for client, kind, round in federation.requested if (client, kind) == ("client-2", "Train")] == [5]


def test_a_lost_update_is_left_out_of_the_mean():
    config = config_of(rounds=2)
    federation = FlakyFederation(clients(config))
    federation.lost = {("client-0", "Train", 1)}
    last, reports = reports_of(config, federation)
    assert (last.shared["visual"] == 2).all()
    assert reports[1].participants == ("client-1", "client-2")


def test_lost_update_is_not_averaged_but_client_is_trained():
    config = config_of(rounds=3)
    runs = {}
    for kind in ("lost", "late"):
        federation = FlakyFederation(clients(config, CoupledLearner))
        getattr(federation, kind).add(("client-1", "Train", 0))
        states = []
        run(config, federation, start(), lambda state, report, states=states: states.append(state))
        runs[kind] = [state.shared["visual"] for state in states]
    assert (runs["lost"][0] == runs["late"][0]).all()  # that round's average is the same
    assert (runs["lost"][1] != runs["late"][1]).any()  # its text prompt shows in the next round whether it has trained


def test_too_few_usable_replies_end_the_run_with_reasons():
    config = config_of(rounds=1)
    federation = FlakyFederation(clients(config, count=4))
    federation.min_replies = 3
    federation.spoiled = {(f"client-{i}", "Train", 0): INVALID_REPLIES["not finite"] for i in (1, 2)}
    message = (
        "round 1, step Train: 2 usable replies from 4 clients, and at least 3 are needed; "
        "client-1: prompt visual is not finite: training diverged, try a lower train.lr; client-2: prompt visual is not"
    )
    with pytest.raises(NoClientReplied, match=re.escape(message)):
        run(config, federation, start(), ignore)
    del federation.spoiled["client-2", "Train", 0]
    assert reports_of(config, federation)[1][0].participants == ("client-0", "client-2", "client-3")


def test_missing_reply_counts_as_unusable():
    config = config_of(rounds=1)
    federation = FlakyFederation(clients(config))
    federation.min_replies = 2
    federation.spoiled = {("client-2", "Train", 0): INVALID_REPLIES["not finite"]}
    federation.lost = {("client-0", "Train", 0)}
    with pytest.raises(
        NoClientReplied, match=r"1 usable reply from 3 clients.*; client-2: prompt.*; client-0: did not send"
    ):
        run(config, federation, start(), ignore)


def test_needed_replies_are_at_most_the_requests():
    config = config_of(rounds=1, sharing={"participation": 0.4})
    federation = LocalTransport(clients(config))
    federation.min_replies = 3
    assert len(reports_of(config, federation)[1][0].participants) == 1


def test_list_of_reasons_is_shortened():
    config = config_of(rounds=1)
    federation = FlakyFederation(clients(config, count=5))
    federation.spoiled = {(f"client-{i}", "Train", 0): INVALID_REPLIES["not finite"] for i in range(5)}
    with pytest.raises(NoClientReplied, match=r"0 usable replies.*client-2: [^;]*; and 2 more$"):
        run(config, federation, start(), ignore)


GOOD = START["visual"]
INVALID_REPLIES = {
    "prompt visual has a value beyond 32768": Trained({"visual": GOOD + np.float32(1e38)}, 3, 0.1),
    "more than 2,147,483,648 images": Trained({"visual": GOOD}, 10**400, 0.1),
    "its loss is inf": Trained({"visual": GOOD}, 3, float("inf")),
    r"its loss is -1e\+308": Trained({"visual": GOOD}, 3, -1e308),
    "'low' is not a loss": Trained({"visual": GOOD}, 3, "low"),
    "not finite": Trained({"visual": np.full((2, 3), np.nan, np.float32)}, 3, 0.1),
    "instead of float32": Trained({"visual": GOOD.astype(np.float64)}, 3, 0.1),
    r"\(3, 2\) instead of": Trained({"visual": GOOD.T}, 3, 0.1),
    "instead of \\['visual'\\]": Trained({"visual": GOOD, "text": GOOD}, 3, 0.1),
    "not a number of images": Trained({"visual": GOOD}, -1, 0.1),
    "replied to Train with Evaluated": Evaluated(1, 2),
}


@pytest.mark.parametrize(("why", "invalid"), INVALID_REPLIES.items())
def test_invalid_reply_is_dropped_and_named(why, invalid):
    config = config_of(rounds=1)
    federation = FlakyFederation(clients(config))
    federation.spoiled = {("client-1", "Train", 0): invalid}
    last, [report] = reports_of(config, federation)
    assert (last.shared["visual"] == 1).all()
    assert list(report.dropped) == ["client-1"]
    assert re.search(why, report.dropped["client-1"])


@pytest.mark.parametrize("counts", [[1, 2], [1, 2, -1], [0.5, 1, 1], [0, 0, 2**63 - 1], [0, -(2**63), 0], [2**30] * 3])
def test_counts_must_be_one_whole_number_per_class(counts):
    config = config_of(rounds=1)
    federation = FlakyFederation(clients(config))
    federation.spoiled = {("client-0", "Estimate", 0): Estimated(np.array(counts))}
    _, [report] = reports_of(config, federation)
    assert "client-0" in report.dropped


def test_noisy_counts_may_be_negative_within_bounds():
    message, config = Estimate(0, {"visual": GOOD}), config_of(privacy={"noise_multiplier": 1.0})
    assert validate_reply(message, Estimated(np.array([-5, 1, 1])), CLASSES, config) is None
    assert "more than 2,147,483,648" in validate_reply(message, Estimated(np.array([-(2**63), 1, 1])), CLASSES, config)


@pytest.mark.parametrize("reply", [Evaluated(1, 2**40), Evaluated(3, 2), Evaluated(-1, 2), Evaluated(1.5, 2)])
def test_scores_must_be_numbers_of_images(reply):
    assert validate_reply(Evaluate(0, None), reply, CLASSES)


def test_long_names_in_replies_are_shortened():
    strange = Trained({"x" * 10**6: GOOD}, 3, 0.1)
    assert len(validate_reply(Train(0, {"visual": GOOD}), strange, CLASSES)) == 300


numbers = st.integers(0, 10**400) | st.integers(-5, 2**32)
values = st.floats(width=32) | st.floats(-40_000, 40_000, width=32)
prompts = arrays(np.float32, (2, 3), elements=values).map(lambda prompt: {"visual": prompt})
ANYTHING = {
    "Train": st.builds(Trained, prompts, numbers, st.floats() | st.floats(-(2**33), 2**33)),
    "Estimate": st.builds(Estimated, arrays(np.int64, CLASSES, elements=st.integers(-5, 2**63 - 1))),
    "Evaluate": st.builds(Evaluated, numbers, numbers),
    "Select": st.builds(Selected, *3 * [st.none() | numbers]),
}


@pytest.mark.parametrize("kind", ANYTHING)
@given(st.data())
def test_extreme_numbers_do_not_end_a_run(kind, data):
    config = config_of(rounds=1)
    federation = FlakyFederation(clients(config))
    federation.spoiled["client-1", kind, 0] = data.draw(ANYTHING[kind])
    last, [report] = reports_of(config, federation)
    assert (np.abs(last.shared["visual"]) <= LARGEST_PROMPT).all()
    assert math.isfinite(report.loss)
    honest = [federation.states[name].counts for name in ("client-0", "client-2")]
    assert (report.totals >= np.sum(honest, axis=0)).all()
    assert max(sum(report.scores.values(), (report.labelling.images,))) < 2**33
    numbers = (report.loss, report.examples, report.batches, report.scores, asdict(report.labelling))
    json.dumps((report.totals.tolist(), *numbers), allow_nan=False)
    assert all((state.quota >= 0).all() for state in federation.states.values() if state.quota is not None)


@pytest.mark.parametrize("rule", ["argmax", "column", "leaderboard"])
def test_image_may_be_selected_for_several_classes(rule):
    config = config_of(rounds=2, labeler="fpl", labels={"fpl_rule": rule})
    _, reports = reports_of(config, LocalTransport(clients(config)))
    assert all(report.dropped == {} and len(report.participants) == 3 for report in reports)
    assert reports[0].labelling.chosen <= reports[0].labelling.images == 36


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Selected(3, 2, None), "reports more selected or unchanged images than it has"),
        (Selected(1, 2, 3), "reports more selected or unchanged images than it has"),
        (Selected(1, None, None), "but not how many images it has"),
        (Selected(-1, 2, None), "-1 is not a number of images"),
        (Selected(1, 2.5, None), "2.5 is not a number of images"),
        (Selected(1, 2**31 + 1, None), "more than 2,147,483,648 images"),
    ],
)
def test_selected_images_are_at_most_all_images(reply, why):
    assert why in (validate_reply(Select(0, 0, None, 2), reply, CLASSES) or "")


@pytest.mark.parametrize("reply", [Selected(None, None, None), Selected(0, 0, None), Selected(1, 2, 2)])
def test_selected_may_be_empty(reply):
    assert validate_reply(Select(0, 0, None, 2), reply, CLASSES) is None


def test_labelling_counts_are_summed_over_clients():
    numbers = [
        Selected(3, 10, 8),
        Selected(2, 5, None),
        Selected(None, None, None),
    ]  # new: the second
    assert _labelling(numbers) == Labelling(images=15, chosen=5, compared=10, unchanged=8)
    assert _labelling([Selected(None, None, None)]) is None


def test_only_refreshes_report_labelling():
    config = config_of(rounds=3, labels={"refresh_every": 2})
    _, reports = reports_of(config, LocalTransport(clients(config)))
    first, between, second = (report.labelling for report in reports)
    assert (first.images, first.compared, between) == (36, 0, None)  # three clients of twelve images
    assert (second.compared, second.unchanged) == (36, 36)  # these clients do not change their minds
    assert 0 < second.chosen <= 36


def test_valid_reply():
    assert validate_reply(Train(0, {"visual": GOOD}), Trained({"visual": GOOD}, 3, 0.1), CLASSES) is None


def test_only_invalid_replies_end_the_run():
    config = config_of(rounds=1)
    federation = FlakyFederation(clients(config, count=1))
    federation.spoiled = {("client-0", "Train", 0): INVALID_REPLIES["not finite"]}
    with pytest.raises(NoClientReplied, match="client-0: prompt visual is not finite"):
        run(config, federation, start(), ignore)


def test_fresh_states_are_empty():
    assert LocalTransport(clients(config_of())).states["client-0"] == ClientState()


def test_all_members_train_first_if_the_method_requires_it():
    config = config_of(sharing={"participation": 0.34})
    federation = LocalTransport(clients(config))
    first, report = run_round(config, federation, replace(start(), full_first_round=True))
    assert report.participants == ("client-0", "client-1", "client-2")
    _, report = run_round(config, federation, first)
    assert len(report.participants) == 1


def test_neighbours_are_sent_once_a_client_has_sent_its_own(monkeypatch):
    config = config_of()
    federation, sent = LocalTransport(clients(config)), []
    message = federation.request
    monkeypatch.setattr(federation, "request", lambda requests: (sent.append(dict(requests)), message(requests))[1])
    first, report = run_round(config, federation, replace(start(), neighbours=1))
    assert set(first.uploads) == {"client-0", "client-1", "client-2"}
    run_round(config, federation, first)
    before, after = (sent_requests for sent_requests in sent if isinstance(next(iter(sent_requests.values())), Train))
    assert all(request.experts == () for request in before.values())
    for client, request in after.items():
        (expert,) = request.experts
        assert [expert is report.updates[other] for other in report.updates if other != client].count(True) == 1


def test_without_neighbours_no_upload_is_kept():
    config = config_of()
    state, _ = run_round(config, LocalTransport(clients(config)), start())
    assert state.uploads == {}


class ConfidenceLearner(FakeLearner):
    """The visual prompt is the confidence, to which training adds 1."""

    def log_probabilities_of(self, prompts, index):
        logits = self.log_probs[index] * (1 + prompts["visual"][0, 0])
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_server_rollback_of_harmful_average():
    # On the clients' holdouts +1 is good; an average of -1, made of invalid updates, is harmful.
    config = config_of(rounds=4)
    federation = LocalTransport(clients(config, ConfidenceLearner))
    state, _ = run_round(config, federation, start())
    assert (state.shared["visual"] == 1).all()
    assert (state.last_good["visual"] == 0).all()
    spoilt = replace(state, shared={"visual": np.full((2, 3), -1, np.float32)}, last_good=state.shared)
    after, report = run_round(config, federation, spoilt)
    assert report.server_rolled_back
    assert report.checks.averages_rolled_back == 2  # the third selected no held-out image
    assert (after.shared["visual"] == 1).all()
    assert after.last_good is None
    after, report = run_round(config, federation, after)
    assert not report.server_rolled_back
    assert (after.shared["visual"] == 2).all()


@pytest.mark.parametrize(
    ("before", "images", "loss_before", "loss_after", "after"),
    [
        (0, 0, 0.0, 0.0, 0),  # nothing to compare: the first round
        (1, 0, 0.0, 0.0, 1),
        (0, 100, 50.0, 49.95, 1),  # 0.0005 nats per image
        (1, 100, 50.0, 50.5, 2),  # worse
        (1, 100, 50.0, 49.8, 0),  # 0.002 nats per image
    ],
)
def test_rounds_without_gain_on_held_out_images_are_counted(before, images, loss_before, loss_after, after):
    assert _stale_rounds(before, HoldoutSums(images, loss_before, loss_after)) == after


def test_training_stops_only_with_priors_and_patience():
    with_priors = RunConfig.from_mapping({"train": {"patience": 2}}, "test")
    assert [_has_converged(with_priors, stale) for stale in (0, 1, 2, 3)] == [False, False, True, True]
    assert not _has_converged(RunConfig.from_mapping({"train": {"patience": 0}}, "test"), 5)
    without = {"priors": {"logit_bias": False, "label_shift": False, "prototypes": False}}
    assert not _has_converged(RunConfig.from_mapping(without, "test"), 5)
