"""The study of readings, at a size that can be followed."""

import numpy as np
import pytest

from fedcopl.algorithm.select import Selection
from label_readings import CPL, FOUND, FPL, PAGE, SEEDS, Split, simulated, split_by, together

# A client of class 0 alone, sure of it in two images, and one of class 1; images 2 and 3 are unsure and wrong.
FIRST = np.log([[0.9, 0.05, 0.05], [0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.3, 0.3, 0.4]])
SECOND = np.log([[0.1, 0.8, 0.1], [0.2, 0.7, 0.1]])
SPLIT = Split([FIRST, SECOND], [np.zeros(4, np.int64), np.ones(2, np.int64)], (0.5, 0.5))


def test_to_the_letter_the_unsure_are_taken_too_and_as_found_they_are_not():
    assert FPL[0].accuracy(SPLIT) == pytest.approx(100 * 4 / 6)
    assert FOUND["FPL"].accuracy(SPLIT) == FOUND["CPL"].accuracy(SPLIT) == 100


def test_together_is_one_ranking_over_all_clients():
    def surest(beliefs):
        return Selection(np.array([0, 4]), np.array([0, 1]))

    chosen = together(surest)(SPLIT)
    assert [one.index.tolist() for one in chosen] == [[0], [0]]


def test_simulated_posteriors_are_as_good_and_as_sure_as_clip():
    belief, truth = simulated("dtd", 1)
    assert belief.shape == (3760, 47)
    assert (belief.argmax(axis=1) == truth).mean() == pytest.approx(0.4324, abs=0.01)
    assert np.exp(belief).max(axis=1).mean() == pytest.approx(0.4324, abs=0.01)


def test_the_page_is_of_these_readings():
    page = PAGE.read_text(encoding="utf-8")
    assert [
        line.split(" | ")[1]
        for line in page.splitlines()
        if line.startswith(("| FPL | each", "| FPL | **", "| FPL | all"))
    ] == [reading.name for reading in FPL]
    assert all(f"| CPL | {reading.name} |" in page for reading in CPL)


def test_one_cell_of_the_page():

    shown = []
    for seed in SEEDS:
        belief, truth = simulated("dtd", seed)
        shown.append(FOUND["FPL"].accuracy(split_by("quantity", belief, truth, 10, (0.75, 0.95), seed)))
    assert f"| FPL | {np.mean(shown):.1f} (55.2)" in PAGE.read_text(encoding="utf-8")
