"""The study of training after the priors: the linear head, and the page."""

import json

import numpy as np
import pytest

from fedcopl.priors.posterior import log_softmax
from fedcopl_experiments import training_study
from fedcopl_experiments.training_study import END, HEADS, PROMPTS, SPLITS, START, main, table, train_head
from test_priors_study import data

__all__ = ["data"]  # a fixture


def test_the_head_stays_at_zero_if_its_targets_are_the_initial_predictions():
    rng = np.random.default_rng(1)
    features, offset = rng.normal(size=(50, 4)), rng.normal(size=(50, 3))
    head = train_head(features, offset, np.exp(log_softmax(offset)), np.ones(50))
    assert np.abs(head).max() < 1e-3


def test_a_head_learns_separable_classes_and_ignores_images_of_weight_zero():
    features = np.array([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0], [-0.9, -0.1], [5.0, 0.0]])
    targets = np.eye(2)[[0, 0, 1, 1, 1]]  # the last image contradicts the others
    head = train_head(features, np.zeros((5, 2)), targets, np.array([1.0, 1, 1, 1, 0]))
    scores = np.c_[features, np.ones(5)] @ head
    assert scores.argmax(axis=1).tolist() == [0, 0, 1, 1, 0]


def test_all_heads_are_measured(data):
    row = training_study.measure_heads(data, "0.1", seed=1, clients=3)
    assert tuple(row) == HEADS
    assert all(0 <= value <= 100 for value in row.values())
    assert row["soft"] == pytest.approx(row["priors"], abs=2.0)  # the targets are the posteriors of the priors


def test_the_page_has_the_means_of_both_studies(tmp_path, monkeypatch):
    for name, columns, kind in (("heads", HEADS, SPLITS[0]), ("prompts", PROMPTS, "CoPL")):
        row = {"seed": [1, 2], **{column: [50.0, 60.0] for column in columns}}
        (tmp_path / f"{name}.json").write_text(json.dumps({"digits": {kind: row}}))
    page = tmp_path / "page"
    page.write_text(f"before\n{START}\nold\n{END}\nafter\n")
    monkeypatch.setattr(
        "sys.argv", ["study", "page", *(str(tmp_path / n) for n in ("heads.json", "prompts.json", "page"))]
    )
    main()
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith(f"{END}\nafter\n") and "old" not in text
    assert "| digits | Dirichlet 0.1 | 1, 2 | 55.0 |" in text and "| digits | CoPL | 1, 2 | 55.0 |" in text


def test_a_table_has_a_row_for_each_kind():
    results = {"digits": {kind: {"seed": [1], **{key: [50.0] for key in HEADS}} for kind in SPLITS}}
    assert table(results, HEADS).count("| digits |") == len(SPLITS)
