"""What a person is told of a run that is over."""

import pytest

from fedcopl.cli.show import facts, print_outcome, print_results
from fedcopl.run.record import Measured, Outcome, RoundRecord


def said(before, after):
    rounds = (RoundRecord(round=0, macro=after, untrained=None if before is None else Measured(macro=before)),)
    return dict(facts(Outcome(rounds=rounds, trains=True))).get("training")


@pytest.mark.parametrize(("before", "after"), [(0.8, 0.9), (0.8, 0.795), (None, 0.5), (0.8, None)])
def test_training_that_costs_nothing_is_not_spoken_of(before, after):
    assert said(before, after) is None


def test_training_that_lost_is_owned_up_to():
    assert said(0.844, 0.8) == "lost 4.4 points of what priors gave without it: here method=priors is better"


@pytest.mark.parametrize("macro", [0.8, None])
@pytest.mark.parametrize("show", [print_results, print_outcome])
def test_the_numbers_stand_under_what_ran(capsys, tmp_path, show, macro):
    run = Outcome(method="PromptFL + FPL + priors", name="demo", rounds=(RoundRecord(round=0, macro=macro),))
    show(run, tmp_path)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "PromptFL + FPL + priors" in first and "demo, seed 0" in f"{first} {second}"
