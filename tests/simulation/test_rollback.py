"""What the guard found reaches the log and the results."""

import numpy as np
import pytest

from fedcopl.algorithm.holdout import Evidence, HoldoutMemory, HoldoutVerdict
from fedcopl.config import RunConfig
from fedcopl.federation.client_state import ClientState
from fedcopl.federation.server import RoundReport
from fedcopl.privacy.masked_layout import Checks
from fedcopl.run.loop import round_record
from fedcopl.run.progress_reporter import SilentReporter
from fedcopl.run.record import FirstPrompts, HoldoutRecord, Measured, RoundRecord
from fedcopl.run.rollback_text import final_text, movement_text, rollback_text
from fedcopl.simulation.simulate import simulate
from small_digits import small_digits


def test_a_quiet_round_says_nothing():
    assert list(rollback_text(RoundRecord(round=0))) == []
    assert list(rollback_text(round_record(RoundReport(0), Measured()))) == []


def test_what_was_undone_is_said():
    report = RoundReport(2, checks=Checks(10.0, 1.0, 2.0, 1.0, 2.0), average_undone=True)
    record = round_record(report, Measured())
    first, second = rollback_text(record)
    assert first.startswith("2 sites took back the training")
    assert second.startswith("the last average")
    assert record.holdout == HoldoutRecord(
        images=10.0, loss_had=1.0, loss_came=2.0, average_harmed=1.0, training_harmed=2.0, average_undone=True
    )


def test_who_gave_up_and_who_keeps_another_model_is_said():
    harm = HoldoutVerdict("less sure", Evidence(), Evidence(), 0.0)
    fine = HoldoutVerdict("", Evidence(), Evidence(), 0.0)
    states = {
        "a": ClientState(guard=HoldoutMemory(gave_up=True)),
        "b": ClientState(guard=HoldoutMemory(arrival=harm)),
        "c": ClientState(guard=HoldoutMemory(arrival=fine)),
    }
    first, second = final_text(states)
    assert first.startswith("a: gave up:")
    assert second.startswith("b: keeps the model it had")


def test_only_loud_first_prompts_are_mentioned():
    assert list(movement_text(None)) == []
    assert list(movement_text(FirstPrompts(images=10, cosine=0.99, unchanged=0.95))) == []
    assert list(movement_text(FirstPrompts(images=10, cosine=0.3, unchanged=0.5))) == [
        "the first prompts, untrained, change 50% of the answers; see train.init"
    ]


class Listening(SilentReporter):
    def __init__(self):
        self.heard = []

    def noticed(self, what):
        self.heard.append(what)


@pytest.mark.slow
def test_a_run_tells_how_quiet_it_began_and_what_its_guard_found(tmp_path):
    settings = {"rounds": 2, "data": {"clients": 3}, "train": {"epochs": 2, "lr": 100.0}, "model": {"threads": 1}}
    watcher = Listening()
    config = RunConfig.from_mapping(settings, "test")
    results = simulate(config, tmp_path / "run", watcher=watcher, dataset=small_digits())
    assert results.first_prompts.cosine > 0.98
    assert results.first_prompts.unchanged > 0.8
    assert results.rounds[0].holdout.training_harmed >= 1  # a learning rate of 100 is beyond any use
    assert "took back the training" in next(rollback_text(results.rounds[0]))
    assert results.final.macro >= results.zero_shot.macro - 0.02
    assert np.isfinite(results.final.macro)
