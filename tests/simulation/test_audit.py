"""Client drift in a simulation, computed by hand."""

import numpy as np
import pytest

from fedcopl.federation.client_state import ClientState
from fedcopl.federation.transport import RoundReport
from fedcopl.simulation.audit import _drift

START = {"visual": np.zeros(2), "text": np.array([1.0, 1.0])}


def own(*values):
    return ClientState(own={"text": np.array(values, float)})


def text_drift(old, new):
    names = ("north", "south")
    report = RoundReport(round=0, participants=names, updates={name: {"visual": np.ones(2)} for name in names})
    before = {"visual": np.zeros(2)}, dict(zip(names, old, strict=True))
    found = _drift(START, before, report, dict(zip(names, new, strict=True)))
    assert found["visual"].diversity == 0.5  # both moved alike: 1 / K
    return found["text"]


def test_drift_of_personal_arrays_in_the_first_round():
    # From (1, 1) to (2, 1) and (1, 2): moves (1, 0) and (0, 1), squares 1 + 1, square of the sum (1, 1) is 2.
    found = text_drift([ClientState(), ClientState()], [own(2, 1), own(1, 2)])
    assert (found.diversity, found.cosine) == pytest.approx((1, 1))


def test_drift_of_personal_arrays_in_later_rounds():
    # Mean of (0, 0) and (2, 2) is (1, 1): moves (3, 4) and (3, -4); squares 50, square of the sum (6, 0) is 36;
    # cosine of the two (9 - 16) / 25.
    found = text_drift([own(0, 0), own(2, 2)], [own(4, 5), own(4, -3)])
    assert (found.diversity, found.cosine) == pytest.approx((50 / 36, 1 + 7 / 25))


def test_drift_of_a_client_that_trains_first_later():
    # Mean of (3, 3) and the start (1, 1) is (2, 2): moves (1, 0) and (-1, 0), which cancel out: diversity is infinite.
    found = text_drift([own(3, 3), ClientState()], [own(3, 2), own(1, 2)])
    assert (found.diversity, found.cosine) == (None, pytest.approx(2))
