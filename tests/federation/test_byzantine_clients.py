"""Byzantine clients against the server: dropped replies, clipped weights and updates, robust rules."""

from dataclasses import replace

import numpy as np
import pytest

from fakes import CLASSES, NO_PRIORS, START, FakeLearner, FlakyFederation, clients, run, start
from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError, NoClientReplied
from fedcopl.federation.server import evaluate_zero_shot, run_round
from fedcopl.federation.validation import ReportedCounts, validate_reply
from fedcopl.messages import Adapt, Adapted, Estimate, Estimated, Evaluate, Evaluated, Select, Selected, Train, Trained
from fedcopl.privacy.masked_layout import HoldoutSums
from fedcopl.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedcopl.run.record import Outcome, RoundRecord
from fedcopl.simulation.simulate import LocalTransport

BYZANTINE, HONEST = "client-1", ("client-0", "client-2", "client-3", "client-4")


class TamperingTransport(LocalTransport):
    """Replaces the replies of one client by `tamper(request, reply)`."""

    def __init__(self, clients, tamper):
        super().__init__(clients)
        self.tamper = tamper

    def request(self, requests):
        replies = super().request(requests)
        return {
            name: self.tamper(requests[name], reply) if name == BYZANTINE else reply for name, reply in replies.items()
        }


def config_of(rounds=1, priors=NO_PRIORS, **sections):
    return RunConfig.from_mapping({"rounds": rounds, "priors": priors, **sections}, "test")


def run_with_byzantine_client(config, tamper, learner=FakeLearner):
    """Run all rounds with one Byzantine client of five; return the last state and the reports."""
    reports, federation = [], TamperingTransport(clients(config, learner, count=5), tamper)
    last = run(config, federation, start(), lambda _, report: reports.append(report))
    return last, reports


def tamper_with(kind, change):
    """Change the replies of one type tamper_with."""
    return lambda message, reply: change(reply) if isinstance(message, kind) else reply


MILLION = np.full(CLASSES, 10**6)


def test_more_confident_images_than_images_are_dropped_at_select():
    last, [report] = run_with_byzantine_client(config_of(), tamper_with(Estimate, lambda _: Estimated(MILLION)))
    assert report.dropped == {BYZANTINE: "Select: was confident of 3,000,000 images, but has 12 by its own reports"}
    assert BYZANTINE not in last.members and report.missed_refresh == (BYZANTINE,)
    # The others have 12 images each, so at most 12 confident ones; the bound is ten times their median.
    assert report.totals.sum() <= 4 * 12 + 120
    assert "counts clipped from 3,000,000 to" in report.bounds.summary()[BYZANTINE]


def test_more_confident_images_than_reported_before_are_dropped_at_once():
    def tamper(message, reply):
        return Estimated(MILLION) if isinstance(message, Estimate) and message.round else reply

    _, [_, report] = run_with_byzantine_client(config_of(rounds=2, labels={"refresh_every": 1}), tamper)
    assert report.dropped == {BYZANTINE: "Estimate: is confident of 3,000,000 images, but has 12 by its own reports"}
    assert report.totals.sum() <= 4 * 12


def test_weight_above_the_selected_images_is_dropped():
    last, [report] = run_with_byzantine_client(
        config_of(), tamper_with(Train, lambda reply: replace(reply, examples=10**6))
    )
    assert "Train: trained on 1,000,000 images, but selected " in report.dropped[BYZANTINE]
    assert report.participants == HONEST
    assert (last.shared["visual"] == 1).all()


def test_changed_number_of_images_is_dropped():
    def tamper(message, reply):
        return replace(reply, images=13) if isinstance(message, Select) and message.round else reply

    _, reports = run_with_byzantine_client(config_of(rounds=2, labels={"refresh_every": 1}), tamper)
    assert reports[1].dropped == {BYZANTINE: "Select: has 13 images, but reported 12 before"}
    grown = validate_reply(Evaluate(1, None), Evaluated(5, 11), CLASSES, RunConfig(), ReportedCounts(tested=10))
    assert grown == "tested 11 images, but 10 before"


def multiply_by_a_million(message, reply):
    """Consistently reports a million times its numbers of images."""
    match reply:
        case Estimated(counts=counts) if counts is not None:
            return Estimated(counts * 10**6)
        case Selected(images=images, examples=examples) if images is not None:
            return replace(reply, images=images * 10**6, examples=examples * 10**6)
        case Trained(shared=shared, examples=examples):
            moved = {name: value + 99 for name, value in shared.items()}
            return replace(reply, shared=moved, examples=examples * 10**6, checks=())
        case Adapted(sums=sums) if sums is not None:
            return Adapted(sums * 10**6)
    return reply


def test_consistent_liar_is_clipped_to_the_bounds_of_the_others():
    last, [report] = run_with_byzantine_client(config_of(), multiply_by_a_million)
    assert report.dropped == {}
    cut = report.bounds.summary()[BYZANTINE]
    assert "Estimate: counts clipped from" in cut
    assert report.totals.sum() <= (10 + 4) * 12  # each honest client has 12 images
    assert "Train: update of visual clipped to 1/10.0 of its length" in cut
    assert 1 < last.shared["visual"].max() < 10  # the honest move by 1, the Byzantine client by 10 at most
    plain, _ = run_with_byzantine_client(config_of(sharing={"bounded": False}), multiply_by_a_million)
    assert plain.shared["visual"].max() == pytest.approx(100, abs=0.1)


@pytest.mark.parametrize("rule", ["trimmed", "median", "krum"])
def test_robust_rule_follows_honest_clients(rule):
    last, _ = run_with_byzantine_client(config_of(sharing={"robust": rule, "bounded": False}), multiply_by_a_million)
    assert (last.shared["visual"] == 1).all()


def test_prior_sums_of_one_client_weigh_at_most_ten_others():
    config = config_of(priors={"logit_bias": True})
    _, [report] = run_with_byzantine_client(config, multiply_by_a_million)
    assert report.dropped == {}
    assert "Adapt: weight clipped from 12,000,000 to 120 images" in report.bounds.summary()[BYZANTINE]


def test_client_with_invalid_prior_sums_is_left_out_of_the_refresh():
    lies = tamper_with(Adapt, lambda reply: reply if reply.sums is None else Adapted(reply.sums - 5))
    last, [report] = run_with_byzantine_client(config_of(priors={"logit_bias": True}), lies)
    assert report.dropped[BYZANTINE].startswith("Adapt: a class has a negative number of images")
    assert report.missed_refresh == (BYZANTINE,)
    assert last.members == HONEST
    other, _ = run_with_byzantine_client(config_of(priors={"logit_bias": True}), lambda message, reply: reply)
    assert np.isfinite(last.prior_model.logit_bias).all() and other.members == (HONEST[0], BYZANTINE, *HONEST[1:])


def test_one_holdout_report_cannot_decide_a_rollback():
    config = config_of(rounds=3)
    images = {}

    def cries(message, reply):
        if isinstance(reply, Trained) and reply.checks and reply.checks[0]:
            found = HoldoutSums(*reply.checks)
            images[message.round] = found.images
            return replace(reply, checks=tuple(found._replace(loss_after=1000.0 * found.images)))
        return reply

    _, reports = run_with_byzantine_client(config, cries)
    assert images  # it did cry
    assert not any(report.server_rolled_back for report in reports)
    _, unbounded = run_with_byzantine_client(config_of(rounds=3, sharing={"bounded": False}), cries)
    assert any(report.server_rolled_back for report in unbounded)


@pytest.mark.parametrize(
    ("checks", "why"),
    [
        (HoldoutSums(images=1e6), "its holdout has 1,000,000 images, but it selected 9"),
        (HoldoutSums(images=2.0, loss_after=2100.0), "too large for the number of images"),
        (HoldoutSums(images=2.0, averages_rolled_back=5.0), "is neither 0 nor 1"),
    ],
)
def test_valid_and_invalid_holdout_sums(checks, why):
    trained = Trained(START, 3, 0.5, checks=tuple(checks))
    assert why in validate_reply(Train(0, START), trained, CLASSES, RunConfig(), ReportedCounts(12, 9, 9))


def test_equal_weights_with_noise():
    config = RunConfig.from_mapping({"privacy": {"noise_multiplier": 1.0}}, "test")
    assert "all clients weigh the same" in validate_reply(
        Train(0, START), Trained(START, 2, 0.5), CLASSES, config, ReportedCounts()
    )
    assert validate_reply(Train(0, START), Trained(START, 1, 0.5), CLASSES, config, ReportedCounts()) is None


def test_all_reasons_of_drops_are_recorded():
    def tamper(message, reply):
        match message:
            case Train():
                return replace(reply, examples=10**6)
            case Evaluate():
                return Evaluated(11, 10)
        return reply

    _, [report] = run_with_byzantine_client(config_of(), tamper)
    train, evaluate = report.dropped[BYZANTINE].split("; ")
    assert train.startswith("Train: trained on 1,000,000")
    assert evaluate == "Evaluate: reports more correct predictions than test images"


def test_failed_evaluation_does_not_end_the_run():
    config = config_of(rounds=2)
    federation = FlakyFederation(clients(config))
    federation.min_replies = 3
    federation.lost = {("client-0", "Evaluate", 0)}
    federation.spoiled = {(f"client-{i}", "Evaluate", 0): Evaluated(2, 1) for i in (1, 2)}
    reports = []
    assert evaluate_zero_shot(federation).scores == {}
    run(config, federation, start(), lambda _, report: reports.append(report))
    assert [len(report.scores) for report in reports] == [0, 3]
    assert list(reports[0].dropped) == ["client-1", "client-2"]


def test_missed_refresh_is_reported_until_the_next(tmp_path):
    config = config_of(rounds=5, labels={"refresh_every": 3})
    federation = FlakyFederation(clients(config))
    federation.lost = {("client-2", "Estimate", 0)}
    missed, state = [], start()
    while state.round < 5:
        state, report = run_round(config, federation, state)
        missed.append(report.missed_refresh)
        # The reported counts are in the checkpoint.
        rounds = tuple({"round": number} for number in range(state.round))
        save_checkpoint(tmp_path, Checkpoint(state, {}, outcome_of(rounds)))
        state = load_checkpoint(tmp_path).server
    assert missed == [("client-2",)] * 3 + [()] * 2
    assert state.reported_counts["client-0"].images == 12


def outcome_of(rounds):
    return Outcome(rounds=tuple(RoundRecord(**record) for record in rounds))


def test_impossible_secure_sum_is_detected_without_its_sender():
    config = config_of(priors={"logit_bias": True}, privacy={"secure_aggregation": True})

    def tamper(message, reply):
        if isinstance(message, Adapt) and reply.masked is not None:
            return Adapted(None, reply.masked - np.uint64(1000 << 32))  # a thousand images of each class fewer
        return reply

    with pytest.raises(
        NoClientReplied, match=r"step Adapt: .*the sender cannot be identified under secure aggregation"
    ):
        run_with_byzantine_client(config, tamper)


def test_no_bounds_under_secure_aggregation():
    config = config_of(sharing={"robust": "median"}, privacy={"secure_aggregation": True})
    with pytest.raises(ConfigError, match=r"sharing.robust: median needs the update of each client"):
        run_with_byzantine_client(config, lambda message, reply: reply)
