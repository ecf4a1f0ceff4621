"""What a person is told of a run that is over."""

import pytest

from fedcopl.cli.show import facts
from fedcopl.run.record import Measured, Outcome, RoundRecord


def said(before, after):
    rounds = (RoundRecord(round=0, macro=after, untrained=None if before is None else Measured(macro=before)),)
    return dict(facts(Outcome(rounds=rounds, trains=True))).get("training")


@pytest.mark.parametrize(("before", "after"), [(0.8, 0.9), (0.8, 0.795), (None, 0.5), (0.8, None)])
def test_training_that_costs_nothing_is_not_spoken_of(before, after):
    assert said(before, after) is None


def test_training_that_lost_is_owned_up_to():
    assert said(0.844, 0.8) == "lost 4.4 points of what priors gave without it: here method=priors is better"
