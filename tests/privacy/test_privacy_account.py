"""Epsilon and delta, against closed forms."""

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedcopl.config import RunConfig
from fedcopl.privacy.accountant import (
    PrivacyStatement,
    Release,
    epsilon_of,
    noise_for,
    planned_releases,
    privacy_statement,
)


def exact_epsilon(noises, delta):
    """Of Gaussian mechanisms one after another, which are together as one of noise 1 / mu (Balle and Wang 2018)."""
    mu = math.sqrt(sum(1 / noise**2 for noise in noises))

    def delta_at(epsilon):
        log_tail = epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(log_tail)

    return brentq(lambda epsilon: delta_at(epsilon) - delta, 0, 1e4)


@pytest.mark.parametrize("noises", [[1.0], [1.0] * 24, [0.5, 2.0, 3.0], [10.0] * 24, [0.3] * 5, [4.0] * 20 + [1.5] * 4])
def test_epsilon_is_a_close_upper_bound_of_the_exact_one(noises):
    ours, exact = epsilon_of(noises, 1e-5), exact_epsilon(noises, 1e-5)
    assert exact <= ours <= 1.25 * exact


def test_a_number_by_hand():
    # Renyi: epsilon(alpha) = alpha / 2 for noise 1, and then epsilon <= alpha / 2 + log(1 / delta) / (alpha - 1) + ...
    # The old conversion without the refinement gives 1/2 + sqrt(2 log(1 / delta)) = 5.30 at its best alpha.
    assert epsilon_of([1.0], 1e-5) < 0.5 + math.sqrt(2 * math.log(1e5))
    assert epsilon_of([1.0], 1e-5) > exact_epsilon([1.0], 1e-5) > 4


def test_only_the_sum_of_the_squares_matters():
    assert epsilon_of([2.0] * 4, 1e-5) == pytest.approx(epsilon_of([1.0], 1e-5))
    assert epsilon_of([1.0, 3.0], 1e-5) == epsilon_of([3.0, 1.0], 1e-5)


@pytest.mark.parametrize(("epsilon", "releases"), [(8.0, 24), (1.0, 3), (50.0, 12)])
def test_calibrated_noise_is_the_smallest(epsilon, releases):
    noise = noise_for(epsilon, 1e-5, releases)
    assert epsilon_of([noise] * releases, 1e-5) <= epsilon + 1e-4
    assert epsilon_of([noise * 0.99] * releases, 1e-5) > epsilon


def config_of(**settings):
    return RunConfig.from_mapping(settings, "test")


@pytest.mark.parametrize(
    ("settings", "releases"),
    [
        ({}, 24 + 3),  # balance takes three exchanges, once
        ({"priors": {"logit_bias": False}}, 24),
        ({"rounds": 6, "priors": {"logit_bias": False}}, 8),
        ({"rounds": 5, "priors": {"logit_bias": False}}, 6),
        ({"labeler": "fpl", "priors": {"logit_bias": False}}, 20),
        ({"labels": {"global_allocation": False}, "priors": {"logit_bias": False}}, 20),
    ],
)
def test_prompts_in_each_round_and_counts_at_each_refresh(settings, releases):
    assert planned_releases(config_of(**settings)) == releases


def release(noise, *clients):
    return Release("prompts", noise, clients)


def test_the_statement_is_that_of_the_site_with_the_most_releases():
    config = config_of(privacy={"noise_multiplier": 1.0})
    result = privacy_statement(config, [release(1.0, "a", "b"), release(1.0, "a")])
    assert result.epsilon == epsilon_of([1.0, 1.0], 1e-5)
    assert (result.releases, result.delta, result.unit) == (2, 1e-5, "one site")


def test_lost_parts_of_the_noise_are_in_the_statement():
    config = config_of(privacy={"noise_multiplier": 2.0, "secure_aggregation": True})
    assert privacy_statement(config, [release(1.0, "a")]).epsilon == epsilon_of([1.0], 1e-5)


def test_without_noise_there_is_no_epsilon():
    assert privacy_statement(config_of(), []) is None
    assert privacy_statement(config_of(privacy={"secure_aggregation": True}), []) == PrivacyStatement(
        secure_aggregation=True
    )
    assert privacy_statement(config_of(privacy={"noise_multiplier": 1.0}), []).epsilon == 0
