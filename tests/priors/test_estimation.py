"""The estimation on synthetic clients, and the statistics that it requests."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedcopl.priors.estimation import Estimation, PriorSettings, estimation_after
from fedcopl.priors.posterior import no_priors, uniform
from fedcopl.priors.statistics import ClientScores, Statistic
from priors.synthetic_clients import CLASSES, WIDTH, clients_with, estimated, even, skewed, text


def accuracy(clients, model):
    return np.mean([client.accuracy(model) for client in clients])


def zero_shot(clients):
    return np.mean([client.zero_shot for client in clients])


@pytest.mark.parametrize("seed", range(3))
def test_skewed_clients_get_class_priors_and_prototypes(seed):
    clients = clients_with(skewed(5), seed)
    model = estimated(clients).outcome
    assert model.strength < math.inf and model.prototypes is not None
    assert accuracy(clients, model) > zero_shot(clients) + 0.1


@pytest.mark.parametrize("seed", range(3))
def test_equal_clients_use_the_common_class_prior(seed):
    clients = clients_with(even(6), seed)
    model = estimated(clients).outcome
    assert model.strength == math.inf
    assert model.class_prior == pytest.approx(uniform(CLASSES))
    assert accuracy(clients, model) >= zero_shot(clients)


def test_a_common_long_tail_does_not_cost_accuracy():
    tail = np.array([0.44, 0.28, 0.16, 0.08, 0.04])
    clients = clients_with(np.tile(tail[::-1], (6, 1)), images=200)  # against the bias of the model
    model = estimated(clients).outcome
    assert accuracy(clients, model) >= zero_shot(clients) - 0.02


@pytest.mark.parametrize(
    ("settings", "steps"),
    [({}, 19), ({"prototypes": False}, 10), ({"noisy_steps": 3}, 3), ({"logit_bias": False}, 0)],
)
def test_the_number_of_steps_is_fixed(settings, steps):
    for shares in (even(3), skewed(3)):
        assert len(estimated(clients_with(shares), **settings).totals) == steps
    assert PriorSettings(CLASSES, WIDTH, **settings).max_steps == steps


def test_features_are_in_no_sum_without_prototypes():
    estimation = estimated(clients_with(skewed(4)), prototypes=False)
    assert {statistic.kind for step in estimation.steps for statistic in step} == {"predicted", "logits", "evidence"}
    assert estimation.outcome.prototypes is None


def test_without_label_shift_the_common_prior_is_kept():
    assert estimated(clients_with(skewed(6)), label_shift=False).outcome.strength == math.inf


def test_a_known_class_prior_is_kept():
    known = np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    assert estimated(clients_with(skewed(4)), class_prior=known).outcome.class_prior == pytest.approx(known)


def test_server_and_clients_compute_equal_models_without_text_at_the_server():
    whole = estimated(clients_with(skewed(5)))
    server = Estimation(whole.settings)
    for total in whole.totals:
        server.add(total)
    ours, theirs = (model.to_arrays() for model in (whole.outcome, server.outcome))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_clients_of_a_process_share_an_estimation():
    settings, totals = PriorSettings(CLASSES, WIDTH), estimated(clients_with(skewed(4))).totals
    first = estimation_after(settings, totals[:2], text())
    assert estimation_after(settings, totals[:1], text().copy()) is first
    assert estimation_after(settings, totals[:4], text()) is first and len(first.totals) == 4
    assert estimation_after(settings, [2 * totals[0]], text()) is not first
    assert estimation_after(replace(settings, label_shift=False), totals[:1], text()) is not first


def test_moments_by_hand():
    features = np.array([[0.6, 0.8], [1.0, 0.0]])
    scores = ClientScores(np.log([[0.9, 0.1], [0.2, 0.8]]))
    sums, _ = scores.compute(Statistic("moments"), lambda: features)
    assert sums == pytest.approx([2, 1.1, 0.9, 1.6, 0.8, 1.36, 0.48, 0.64])


@pytest.mark.parametrize("minimum", [0, 2, 5])
def test_class_sums_of_fewer_images_are_withheld(minimum):
    log_probs = np.log(np.array([[0.98, 0.01, 0.01]] * 6 + [[0.01, 0.98, 0.01]]))
    features = np.eye(3)[[0] * 6 + [1]]
    sums, kept = ClientScores(log_probs).compute(
        Statistic("class_sums", (no_priors(3),), number=4), lambda: features, minimum
    )
    # The sums of posteriors: class 0 has six images, class 1 one, class 2 less than one.
    assert [bool(count) for count in sums[0, :, 0]] == {0: [True] * 3, 2: [True, False, False]}.get(
        minimum, [True, False, False]
    )
    assert (kept.contributions[4].sum(axis=0) == sums[0, :, 0]).all()  # withheld classes contribute nothing


def test_class_means_are_leave_one_out():
    # The distance to the mean of the most probable class is larger without the image's own contribution.
    clients = clients_with(skewed(3))
    estimation = Estimation(PriorSettings(CLASSES, WIDTH), text())
    while not any(one.kind == "view_sums" for one in estimation.steps[-1]):
        estimation.add(sum(client.reply(estimation.steps[-1]) for client in clients))
    model = next(one for one in estimation.steps[-1] if one.kind == "view_sums").models[0]
    client = clients[0]
    own = client.scores.with_prototypes(model.prototypes, lambda: client.features)
    as_new = model.prototypes.distances(client.features)
    contributions = client.scores.contributions[0]
    mostly = contributions.argmax(axis=1)
    rows = np.arange(len(mostly))
    assert (own.own_distances(model.prototypes)[rows, mostly] > as_new[rows, mostly]).mean() > 0.9
