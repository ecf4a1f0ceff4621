"""The study of label rules, on examples calculated by hand."""

import numpy as np
import pytest

from fedcopl.algorithm.select import Selection
from label_rules import CHOSEN, CPL, FPL, PAGE, SEEDS, Split, pooled, simulated, split_by

# The first client has class 0 only, the second class 1; images 2 and 3 of the first are predicted wrongly, with low
# confidence.
FIRST = np.log([[0.9, 0.05, 0.05], [0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.3, 0.3, 0.4]])
SECOND = np.log([[0.1, 0.8, 0.1], [0.2, 0.7, 0.1]])
SPLIT = Split([FIRST, SECOND], [np.zeros(4, np.int64), np.ones(2, np.int64)], (0.5, 0.5))


def test_the_literal_rule_selects_images_of_low_confidence_and_the_chosen_rules_do_not():
    assert FPL[0].accuracy(SPLIT) == pytest.approx(100 * 4 / 6)
    assert CHOSEN["FPL"].accuracy(SPLIT) == CHOSEN["CPL"].accuracy(SPLIT) == 100


def test_a_pooled_rule_ranks_the_images_of_all_clients():
    def most_confident(log_probs):
        return Selection(np.array([0, 4]), np.array([0, 1]))

    selections = pooled(most_confident)(SPLIT)
    assert [selection.index.tolist() for selection in selections] == [[0], [0]]


def test_simulated_posteriors_are_calibrated_and_have_the_accuracy_of_clip():
    log_probs, labels = simulated("dtd", 1)
    assert log_probs.shape == (3760, 47)
    assert (log_probs.argmax(axis=1) == labels).mean() == pytest.approx(0.4324, abs=0.01)
    assert np.exp(log_probs).max(axis=1).mean() == pytest.approx(0.4324, abs=0.01)


def test_the_page_lists_all_rules():
    page = PAGE.read_text(encoding="utf-8")
    assert [
        line.split(" | ")[1]
        for line in page.splitlines()
        if line.startswith(("| FPL | each", "| FPL | **", "| FPL | all"))
    ] == [rule.name for rule in FPL]
    assert all(f"| CPL | {rule.name} |" in page for rule in CPL)


def test_one_cell_of_the_page():
    accuracies = []
    for seed in SEEDS:
        split = split_by("quantity", *simulated("dtd", seed), 10, (0.75, 0.95), seed)
        accuracies.append(CHOSEN["FPL"].accuracy(split))
    assert f"| FPL | {np.mean(accuracies):.1f} (55.2)" in PAGE.read_text(encoding="utf-8")
