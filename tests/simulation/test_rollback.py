"""Rollbacks by the hold-out check reach the log and the results."""

import numpy as np
import pytest

from fedcopl.algorithm.holdout import Evidence, HoldoutState, HoldoutVerdict
from fedcopl.config import RunConfig
from fedcopl.federation.client_state import ClientState
from fedcopl.federation.server import RoundReport
from fedcopl.privacy.masked_layout import HoldoutSums
from fedcopl.run.loop import round_record
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.run.record import HoldoutRecord, InitialPromptEffect, Measured, RoundRecord
from fedcopl.simulation.simulate import _final_rollbacks, simulate
from small_digits import small_digits


def test_a_round_without_rollbacks_has_no_line():
    assert list(RoundRecord(round=0).rollbacks()) == []
    assert list(round_record(RoundReport(0), Measured()).rollbacks()) == []


def test_rollbacks_of_a_round():
    report = RoundReport(2, checks=HoldoutSums(10.0, 1.0, 2.0, 1.0, 2.0), server_rolled_back=True)
    record = round_record(report, Measured())
    first, second = record.rollbacks()
    assert first.startswith("2 sites rolled training back")
    assert second.startswith("the last average")
    assert record.holdout == HoldoutRecord(
        images=10.0,
        loss_before=1.0,
        loss_after=2.0,
        averages_rolled_back=1.0,
        trainings_rolled_back=2.0,
        server_rolled_back=True,
    )


def test_clients_that_do_not_end_with_the_average():
    harm = HoldoutVerdict("less confident", Evidence(), Evidence(), 0.0)
    fine = HoldoutVerdict("", Evidence(), Evidence(), 0.0)
    states = {
        "a": ClientState(holdout=HoldoutState(was_reset=True)),
        "b": ClientState(holdout=HoldoutState(average=harm)),
        "c": ClientState(holdout=HoldoutState(average=fine)),
    }
    first, second = _final_rollbacks(states)
    assert first.startswith("a: keeps the initial prompts")
    assert second.startswith("b: keeps its own model")


def test_only_initial_prompts_that_change_many_predictions_are_noted():
    assert list(InitialPromptEffect(images=10, cosine=0.99, unchanged=0.95).notes()) == []
    assert list(InitialPromptEffect(images=10, cosine=0.3, unchanged=0.5).notes()) == [
        "the initial prompts change 50% of the predictions before training; see train.init"
    ]


class RecordingReporter(ProgressReporter):
    def __init__(self):
        self.notes = []

    def note(self, note):
        self.notes.append(note)


@pytest.mark.slow
def test_a_run_records_its_initial_prompts_and_rollbacks(tmp_path):
    settings = {"rounds": 2, "data": {"clients": 3}, "train": {"epochs": 2, "lr": 100.0}, "model": {"threads": 1}}
    settings["priors"] = {"logit_bias": False, "label_shift": False, "prototypes": False}  # they would outweigh it
    progress = RecordingReporter()
    config = RunConfig.from_mapping(settings, "test")
    results = simulate(config, tmp_path / "run", progress=progress, dataset=small_digits())
    assert results.first_prompts.cosine > 0.98
    assert results.first_prompts.unchanged > 0.8
    assert results.rounds[0].holdout.trainings_rolled_back >= 1  # a learning rate of 100 is beyond any use
    assert "rolled training back" in next(results.rounds[0].rollbacks())
    assert results.final.macro >= results.zero_shot.macro - 0.02
    assert np.isfinite(results.final.macro)
