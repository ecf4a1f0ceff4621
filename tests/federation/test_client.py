"""Replies of one client, compared with the steps of the algorithm."""

from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest

from fakes import START, FakeLearner
from fedcopl.algorithm.select import Corrections
from fedcopl.config import RunConfig
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState
from fedcopl.federation.learner import _NoTestSet
from fedcopl.labelers.cpl import _cpl_levels
from fedcopl.messages import (
    REPLY_TO,
    Estimate,
    Estimated,
    Evaluate,
    Evaluated,
    Reply,
    Select,
    Selected,
    Train,
    Trained,
)

VISUAL = {"visual": np.full((2, 3), 5, np.float32)}
# 4 images, 3 classes. Confidences .9 .6 .8 .5: above the median .7 are images 0 and 2, of lowest entropy too.
PROBS = np.array([[0.9, 0.05, 0.05], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.5, 0.3, 0.2]])


def client_with(probs=PROBS, **labels):
    learner = FakeLearner()
    learner.log_probs = np.log(probs)
    return Client(learner, RunConfig.from_mapping({"labels": labels}, "test"))


def estimated(client, round=0):
    reply, state = client.handle(Estimate(round, VISUAL), ClientState())
    return reply, state


def test_estimate_counts_confident_images():
    reply, _ = estimated(client_with())
    assert isinstance(reply, Estimated)
    assert reply.counts.tolist() == [1, 1, 0]


def test_filters_can_be_switched_off():
    reply, _ = estimated(client_with(confidence_filter=False, entropy_filter=False))
    assert reply.counts.tolist() == [3, 1, 0]


def test_the_first_labels_are_zero_shot_and_later_ones_are_not():
    client = client_with()
    estimated(client, round=0)
    estimated(client, round=5)
    first, later = client.learner.predict_calls
    assert first is None
    assert later["visual"] is VISUAL["visual"]
    assert later["text"] is START["text"]


def test_first_labels_after_a_previous_run_use_its_model():
    client, left = client_with(), {"visual": VISUAL["visual"] + 1, "text": START["text"] + 2}
    _, state = client.handle(Estimate(0, VISUAL), ClientState(previous_model=left))
    client.handle(Estimate(5, VISUAL), state)
    first, later = client.learner.predict_calls
    assert first is left
    assert later["visual"] is VISUAL["visual"]  # the average of now
    assert later["text"] is left["text"]  # and its own, as long as it has not trained


def test_select_computes_quota_from_totals():
    # T = [1, 1, 2], S = 4, M = 4/3: quota ceil(1 * 4/3) = 2 of classes 0 and 1. Of class 0's images 0, 1, 3: two.
    client = client_with()
    _, state = estimated(client)
    reply, state = client.handle(Select(0, 0, np.array([1, 1, 2]), 2), state)
    assert reply == Selected(3, 4, None)
    assert state.quota.tolist() == [2, 2, 0]
    assert state.selection.index.tolist() == [0, 1, 2]
    assert state.selection.label.tolist() == [0, 0, 1]
    assert np.exp(state.confidence).tolist() == pytest.approx([0.9, 0.6, 0.8])
    assert state.log_probs is None


def test_without_global_allocation_own_counts_are_the_quota():
    client = client_with(global_allocation=False)
    reply, state = estimated(client)
    assert reply.counts is None
    _, state = client.handle(Select(0, 0, None, 2), state)
    assert state.selection.index.tolist() == [0, 2]


def selected(client):
    _, state = estimated(client)
    return client.handle(Select(0, 0, np.array([1, 1, 2]), 2), state)[1]


def test_training_starts_from_shared_prompts_and_keeps_text_prompt():
    client = client_with()
    client.learner.number = 7
    reply, state = client.handle(Train(0, VISUAL), selected(client))
    assert isinstance(reply, Trained)
    assert set(reply.shared) == {"visual"}
    assert (reply.shared["visual"] == 6).all()
    assert (reply.examples, reply.loss) == (3, 0.5)
    assert set(state.own) == {"text"}
    assert (state.own["text"] == 7).all()
    _, state = client.handle(Train(1, VISUAL), state)
    assert (state.own["text"] == 14).all()


@pytest.mark.parametrize(
    ("sent", "stays"), [(["text"], {"visual"}), (["visual", "text"], set()), ([], {"visual", "text"})]
)
def test_shared_arrays_of_the_request_are_sent_others_kept(sent, stays):
    client = client_with()
    reply, state = client.handle(Train(0, {name: START[name] for name in sent}), selected(client))
    assert set(reply.shared) == set(sent)
    assert set(state.own) == stays


def test_empty_selection_is_not_trained():
    client = client_with(unseen="none")
    _, state = estimated(client)
    reply, state = client.handle(Select(0, 0, np.array([0, 0, 4]), 2), state)
    assert reply == Selected(0, 4, None)
    reply, state = client.handle(Train(0, VISUAL), state)
    assert reply.shared is VISUAL
    assert reply.examples == 0
    assert client.learner.train_calls == []


def test_a_client_without_images():
    client = client_with(probs=np.zeros((0, 3)))
    reply, state = estimated(client)
    assert reply.counts.tolist() == [0, 0, 0]
    reply, _ = client.handle(Select(0, 0, np.array([1, 1, 0]), 2), state)
    assert reply == Selected(0, 0, None)


def test_selected_reports_unchanged_labels():
    client = client_with()
    state = selected(client)
    assert state.labels.tolist() == [0, 0, 1, 0]
    changed = PROBS.copy()
    changed[1] = [0.1, 0.1, 0.8]
    client.learner.log_probs = np.log(changed)
    _, state = client.handle(Estimate(5, VISUAL), state)
    reply, state = client.handle(Select(5, 1, np.array([1, 1, 2]), 2), state)
    assert (reply.images, reply.unchanged) == (4, 3)
    assert state.labels.tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize("privacy", [{"secure_aggregation": True}, {"noise_multiplier": 1.0}])
def test_selected_is_empty_with_privacy(privacy):
    client = replace(client_with(), secret=b"s" * 32)
    _, state = estimated(client)
    private = replace(client, config=RunConfig.from_mapping({"privacy": privacy}, "test"))
    reply, _ = private.handle(Select(0, 0, np.array([1, 1, 2]), 2), state)
    assert reply == Selected(None, None, None)


def test_evaluation_without_test_set_is_zero():
    client = Client(FakeLearner(), RunConfig(), _NoTestSet())
    reply, _ = client.handle(Evaluate(0, VISUAL), ClientState())
    assert reply == Evaluated(0, 0)


@pytest.mark.parametrize("message", [Train(0, VISUAL), Select(0, 0, np.array([1, 1, 1]), 1)])
def test_requests_out_of_order_are_refused(message):
    with pytest.raises(ValueError, match="request before a"):
        client_with().handle(message, ClientState())


def test_what_leaves_a_client():
    leaves = {kind.__name__: [f.name for f in fields(kind)] for kind in REPLY_TO.values()}
    assert leaves == {  # a change here needs a decision in docs/decisions first
        "Adapted": ["sums", "masked", "refused"],
        "Estimated": ["counts", "masked"],
        "Selected": ["examples", "images", "unchanged"],
        "Trained": ["shared", "examples", "loss", "masked", "checks"],
        "Evaluated": ["correct", "examples"],
        "PublicKeys": ["keys", "voucher"],
        "KeyShares": ["sealed"],
        "Unmasked": ["shares"],
    }
    assert set(get_args(Reply)) == set(REPLY_TO.values())


def client_labelling_by(labeler, **labels):
    learner = FakeLearner()
    learner.log_probs = np.log(PROBS)
    return Client(learner, RunConfig.from_mapping({"labeler": labeler, "labels": labels}, "test"))


def selected_by(labeler, refresh=0, **labels):
    client = client_labelling_by(labeler, **labels)
    reply, state = estimated(client)
    assert reply.counts is None  # FPL and CPL send no counts
    return client.handle(Select(5 * refresh, refresh, None, 2), state)[1]


def test_fpl_selects_most_confident_of_each_class():
    state = selected_by("fpl", per_class=2)
    assert state.selection.index.tolist() == [0, 1, 2]  # of class 0: images 0, 1, 3 by confidence
    assert state.selection.label.tolist() == [0, 0, 1]
    assert state.quota.tolist() == [2, 2, 2]


def test_fpl_can_take_any_image_for_a_class():
    state = selected_by("fpl", per_class=1, fpl_rule="column")
    assert state.selection.label.tolist() == [0, 1, 2]
    assert state.selection.index.tolist() == [0, 2, 3]


@pytest.mark.parametrize("labeler", ["fpl", "cpl"])
def test_only_confident_images_are_labelled(labeler):
    # Confidences .9 .6 .8 .5: images 0 and 2 are the upper half.
    state = selected_by(labeler, per_class=2, among="confident", cpl_keep_likeliest=True)
    assert (state.selection.index.tolist(), state.selection.label.tolist()) == ([0, 2], [0, 1])
    assert selected_by(labeler, per_class=2, among="confident", confidence_quantile=0.9).selection.index.tolist() == [0]


def test_image_selected_for_two_classes_counts_once():
    # Four images, each of them among the four surest of each of the three classes.
    client = client_labelling_by("fpl", per_class=4, fpl_rule="column")
    _, state = estimated(client)
    reply, state = client.handle(Select(0, 0, None, 2), state)
    assert reply == Selected(4, 4, None)
    reply, _ = client.handle(Train(0, VISUAL), state)
    assert reply.examples == 12  # it is trained on once for each class


def test_capacity_can_grow_with_the_refreshes():
    # 20 rounds and 5 between refreshes: 4 of them. 4 images, 3 classes: (q + 1) * (4 // 4) // 3, at least 1.
    assert selected_by("fpl", capacity="grow").quota.tolist() == [1, 1, 1]
    assert selected_by("fpl", refresh=2, capacity="grow").quota.tolist() == [1, 1, 1]
    assert selected_by("fpl", refresh=5, capacity="grow").quota.tolist() == [2, 2, 2]


def test_cpl_gives_candidate_sets():
    state = selected_by("cpl", per_class=2, cpl_alpha=0.75, cpl_beta=0.5)
    assert state.selection.candidates.shape == (len(state.selection.index), 3)
    assert state.selection.candidates[np.arange(len(state.selection.label)), state.selection.label].all()


def test_cpl_levels_come_from_the_data_set_unless_set():
    def levels(**settings):
        return _cpl_levels(RunConfig.from_mapping(settings, "test"))

    assert levels(data={"source": "dtd"}) == (0.75, 0.95)
    assert levels(data={"source": "digits"}) == (0.60, 0.90)
    assert levels(data={"source": "ucf101"}) == (0.45, pytest.approx(0.99505, abs=1e-5))
    assert levels(data={"source": "dtd"}, labels={"cpl_beta": 0.5}) == (0.75, 0.5)


def test_remembered_arrays_are_kept_and_used():
    class Remembering(FakeLearner):
        def build_memory(self, selection):
            return {"memory": np.array([len(selection.index)], np.float32)}

    learner = Remembering()
    learner.log_probs = np.log(PROBS)
    client = Client(learner, RunConfig())
    state = selected(client)
    assert state.own["memory"].tolist() == [3]
    reply, state = client.handle(Train(0, VISUAL), state)
    assert set(reply.shared) == {"visual"}
    assert learner.train_calls[0]["memory"].tolist() == [3]


def test_diverged_model_cannot_label():
    client = client_with(probs=np.full((4, 3), np.nan))
    with pytest.raises(ValueError, match=r"training diverged, try a lower train\.lr"):
        estimated(client)


def test_experts_are_never_sent():
    client = client_with()
    expert = {"visual": START["visual"] + 7}
    reply, after = client.handle(Train(0, VISUAL, (expert, expert)), selected(client))
    assert set(reply.shared) == {"visual"}
    assert after.own["experts' visual"].shape == (2, *START["visual"].shape)
    _, later = client.handle(Train(1, VISUAL), after)
    assert (later.own["experts' visual"] == after.own["experts' visual"]).all()  # the last ones sent stay


def test_corrections_are_trained_on_and_not_counted():
    corrections = Corrections(np.array([3]), np.array([2]))  # image 3 looks like class 0, and is of class 2
    client = replace(client_with(), corrections=corrections)
    reply, state = estimated(client)
    assert reply.counts.tolist() == [1, 1, 0]
    _, state = client.handle(Select(0, 0, np.array([1, 1, 2]), 2), state)
    assert dict(zip(state.selection.index.tolist(), state.selection.label.tolist(), strict=True))[3] == 2
    assert state.quota.tolist() == [2, 2, 0]
    assert len(state.confidence) == len(state.selection.index)
