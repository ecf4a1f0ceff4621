"""The study of the priors: splits, tails and its page, on a simulated data set."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedcopl_experiments import priors_study
from fedcopl_experiments.priors_study import (
    COLUMNS,
    END,
    LONG_TABLE,
    START,
    ablate,
    ablation_page,
    means,
    measure,
    run,
    split_clients,
    summary,
    table,
    update_page,
    with_tail,
)

ROOT = Path(__file__).parents[2]
CLASSES, WIDTH, IMAGES = 4, 6, 40


@pytest.fixture(scope="module")
def data():
    """Gaussian classes of unit features, and a text classifier with weights near their means."""
    rng = np.random.default_rng(3)
    means = rng.normal(size=(CLASSES, WIDTH))
    arrays = {"text": means + 0.5 * rng.normal(size=means.shape), "scale": np.array(4.0)}
    for part in ("train", "test"):
        labels = np.repeat(np.arange(CLASSES), IMAGES)
        features = means[labels] + 0.4 * rng.normal(size=(len(labels), WIDTH))
        arrays[part] = features / np.linalg.norm(features, axis=1, keepdims=True)
        arrays[f"{part}_y"] = labels
    return arrays


def test_a_tail_falls_from_ten_to_one(data):
    sizes = np.bincount(with_tail(data, 1)["train_y"])
    # 40 images times 10 ** (-k / 3) for k = 0, 1, 2, 3
    assert sorted(sizes.tolist(), reverse=True) == [40, 19, 9, 4]


@pytest.mark.parametrize("split", ["0.1", "iid", "quantity", "iid, tail 10:1"])
def test_every_split_assigns_images_to_each_client(data, split):
    clients = split_clients(data, split, seed=1, clients=3)
    assert len(clients) == 3
    assert sum(len(client.features) for client in clients) == CLASSES * IMAGES


def test_all_parts_gain_over_zero_shot_under_label_skew(data):
    row = measure("made-up", data, "0.1", seed=1)
    assert row["all"] > row["zero-shot"]
    assert set(row) == set(COLUMNS)


def test_a_study_continues_with_the_missing_measurements(data, tmp_path, monkeypatch):
    out = tmp_path / "study.json"
    run(out, {"made-up": lambda seed: data}, ["iid"], [1])
    first = out.read_text()
    monkeypatch.setattr(priors_study, "measure", None)  # measuring again would fail
    run(out, {"made-up": lambda seed: data}, ["iid"], [1])
    assert out.read_text() == first


RESULTS = ROOT / "experiments" / "priors_study.json"


def results():
    return json.loads(RESULTS.read_text())


def test_the_page_and_the_long_table_are_up_to_date():
    page = (ROOT / "docs" / "priors.md").read_text(encoding="utf-8")
    assert update_page(page, results()) == page
    assert summary(results()) in page
    assert RESULTS.with_suffix(".md").read_text() == LONG_TABLE.format(table(results()))


def test_only_the_block_of_the_study_is_replaced():
    measured = {"digits": {"0.1": {"seed": [1, 2]} | {column: [50.0, 60.0] for column in COLUMNS}}}
    page = update_page(f"before\n{START}\nold\n{END}\nafter\n", measured)
    assert page.startswith("before\n") and page.endswith(f"{END}\nafter\n") and "old" not in page
    assert "| set | Dirichlet 0.1 |" in page and "| digits | 55.0 / 55.0 / 55.0 |" in page
    assert "| digits | Dirichlet 0.1 | 2 | 60.0 |" in table(measured)


@pytest.mark.parametrize("part", ["+ label shift", "all"])
def test_accuracy_does_not_fall_below_zero_shot(part):
    """The mean over the seeds is at most half a point below zero-shot, with long tails two points."""
    below = {
        (name, split): mean[part] - mean["zero-shot"]
        for name, splits in results().items()
        for split, row in splits.items()
        for mean in [means(row)]
        if mean["zero-shot"] - mean[part] > (2.0 if "tail" in split else 0.5)
    }
    assert below == {}


def test_on_iid_splits_little_is_lost_to_a_given_uniform_class_prior():
    """The loss is at most a point, except for one set without prototypes, whose mean logits do not show the bias."""
    below = {
        (name, part)
        for name, splits in results().items()
        if "iid" in splits
        for mean in [means(splits["iid"])]
        for part in ("+ label shift", "all")
        if mean["even"] - mean[part] > 1.0
    }
    assert below == {("CIFAR-10, photo-clip", "+ label shift")}


def test_ablations_switch_one_rule_off_at_a_time(data, tmp_path, monkeypatch):
    used = []

    def fake_measure(kind, arrays, split, seed, columns):
        used.append({name: getattr(priors_study.rules, name) for name in priors_study.ABLATIONS})
        off = [name for name in priors_study.ABLATIONS if used[-1][name] != used[0][name]]
        return {"zero-shot": 50.0, "+ label shift": 60.0, "all": 70.0 - len(off)}

    monkeypatch.setattr(priors_study, "measure", fake_measure)
    out = tmp_path / "ablation.json"
    ablate(out, {"made-up": lambda seed: data}, ["iid"], [1])
    assert len(used) == 1 + len(priors_study.ABLATIONS)
    assert all(sum(constants[name] != used[0][name] for name in constants) == 1 for constants in used[1:])
    assert {name: getattr(priors_study.rules, name) for name in priors_study.ABLATIONS} == used[0]
    page = ablation_page(json.loads(out.read_text()))
    assert "| none | 60.00 | 0.0 | +0.0 | 70.00 | 0.0 | +0.0 |" in page
    assert page.count("| 60.00 | 0.0 | +0.0 | 69.00 | -1.0 | -1.0 |") == len(priors_study.ABLATIONS)
