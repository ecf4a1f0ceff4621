"""Corrections by an expert in a selection, by hand."""

import numpy as np

from fedcopl.algorithm.select import NO_CORRECTIONS, Corrections, Selection, with_corrections

CHOSEN = Selection(np.array([4, 2, 7]), np.array([0, 0, 1]))
CORRECTIONS = Corrections(np.array([2, 5]), np.array([1, 0]))


def test_corrections_come_first_and_have_one_label():
    both = with_corrections(CHOSEN, CORRECTIONS)
    assert both.index.tolist() == [5, 4, 2, 7]
    assert both.label.tolist() == [0, 0, 1, 1]


def test_correction_has_no_other_candidates():
    sets = CHOSEN._replace(candidates=np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]], bool))
    both = with_corrections(sets, CORRECTIONS)
    assert both.candidates.astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1]]


def test_no_corrections_change_nothing():
    assert with_corrections(CHOSEN, NO_CORRECTIONS) is CHOSEN
