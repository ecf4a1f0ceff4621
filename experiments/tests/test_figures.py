"""Figures: numbers computed by hand, and reproducible files."""

import csv
import io

import numpy as np
import pytest
from PIL import Image

from fake_outcomes import DEMO, NO_RUNS, PAPER, SMOKE, FakeOutcomes
from fedcopl.run.record import Drift, RefreshRecord, RoundRecord
from fedcopl_experiments.experiment_catalog import ENTRIES, EXPERIMENTS
from fedcopl_experiments.figure_drawing import draw_heat_maps, draw_lines
from fedcopl_experiments.figure_panels import PartitionMap, build_heat_maps, build_panels, panels_csv

REFRESHES = (RefreshRecord(round=0, pseudo_label_accuracy=0.75),)
CURVES = [e for e in ENTRIES if e.kind == "figure" and e.name != "fig-partition"]


def panels(name, setup, rule, seeds=(1,), **more):
    return build_panels(EXPERIMENTS[name], setup, FakeOutcomes(rule, **more), seeds)


def lines(panel):
    return {(line.name, line.variant): line for line in panel.lines}


def test_accuracy_over_rounds_includes_zero_shot():
    # The fake runs have 50 % before training, 62.5 % after the first round and `final` after the second.
    [panel] = panels("fig-accuracy", DEMO, lambda config: 0.75 if config.seed == 1 else 0.85, (1, 2))
    ours = lines(panel)["FedCoPL", ""].points
    assert [(point.x, point.mean) for point in ours] == [(1, 62.5), (2, pytest.approx(80))]
    assert ours[1].sample.std == pytest.approx(50**0.5)  # of 75 and 85
    assert [point.mean for point in lines(panel)["zero-shot CLIP", ""].points] == [50, 50]
    assert (panel.title, panel.x_label) == ("digits", "communication round")


def test_accuracy_over_the_number_of_clients():
    [panel] = panels("fig-clients", DEMO, lambda config: config.data.clients / 100)
    assert [(point.x, point.mean) for point in lines(panel)["PromptFL + FPL", ""].points] == [
        (5, 5),
        (10, 10),
        (30, 30),
        (50, 50),
    ]
    assert panel.ticks == (5, 10, 30, 50)


def test_figures_show_the_papers_numbers():
    first = panels("fig-clients", PAPER, lambda config: None)[0]
    assert first.title == "DTD"
    assert lines(first)["FedCoPL", ""].paper == (
        (10, 60.89),
    )  # from table 1; no table has the other points of the figure
    assert lines(first)["FedOPT + FPL", ""].paper == ((10, 51.97),)
    rate = panels("fig-participation", PAPER, lambda config: None)[0]
    assert lines(rate)["FedCoPL", ""].paper == ((1, 60.89),)
    tau = panels("fig-tau", PAPER, lambda config: None)[1]
    assert dict(lines(tau)["CIFAR10", ""].paper)[0.9] == 50.92  # table 11
    assert len(lines(tau)["CIFAR10", ""].paper) == 15


def test_figures_of_digits_show_no_paper_numbers():
    for experiment in CURVES:
        made = build_panels(experiment, DEMO, FakeOutcomes(lambda config: 0.5, refreshes=REFRESHES), (1,))
        assert made
        assert all(not line.paper for panel in made for line in panel.lines)


def test_drift_of_both_prompts_solid_while_both_are_aggregated():
    drift = {"visual": Drift(0.25, 0.5), "text": Drift(None, 0.75)}
    rounds = (RoundRecord(round=0, drift=drift), RoundRecord(round=1, drift={}), RoundRecord(round=2, drift=None))
    diversity, cosine = panels("fig-drift", DEMO, lambda config: 0.5, rounds=rounds)
    assert (diversity.y_label, cosine.y_label) == ("drift diversity", "cosine distance")
    assert [(p.x, p.mean) for p in lines(cosine)["text prompts", ""].points] == [(1, 0.75)]
    assert lines(diversity)["text prompts", ""].points == ()  # the drift diversity is infinite
    assert [(p.x, p.mean) for p in lines(diversity)["visual prompts", ""].points] == [(1, 0.25)]
    assert ("visual prompts", "only visual prompts aggregated") in lines(cosine)


def test_pseudo_labels_with_and_without_global_allocation():
    refreshes = tuple(RefreshRecord(round=n, pseudo_label_accuracy=share) for n, share in {0: 0.8, 5: 0.9}.items())
    [panel] = panels("fig-allocation", DEMO, lambda config: 0.5, refreshes=refreshes)
    assert [(p.x, p.mean) for p in lines(panel)["without", ""].points] == [(1, 80), (6, 90)]
    assert panel.y_label == "pseudo label accuracy (%)"


def test_no_panels_without_stored_runs():
    assert build_panels(EXPERIMENTS["fig-clients"], DEMO, NO_RUNS, (1,)) == []


def test_the_partition_of_every_skew():
    maps = build_heat_maps(EXPERIMENTS["fig-partition"], DEMO, seed=1)
    assert [partition.title for partition in maps] == ["digits, β = 0.1", "digits, β = 0.05", "digits, quantity"]
    for partition in maps:
        assert partition.counts.shape == (5, 10)
        assert partition.counts.sum() == 1198  # every training image belongs to one client
    assert (maps[2].counts > 0).sum() == 10  # two classes per client


def test_missing_data_set_has_no_partition():
    assert build_heat_maps(EXPERIMENTS["fig-partition"], PAPER, seed=1) == []


@pytest.mark.parametrize("experiment", CURVES, ids=lambda experiment: experiment.name)
def test_every_figure_has_three_formats(experiment, tmp_path):
    made = build_panels(experiment, SMOKE, FakeOutcomes(lambda config: 0.5, refreshes=REFRESHES), (1, 2))
    files = draw_lines(made, tmp_path / experiment.name)
    assert [file.name for file in files] == [f"{experiment.name}.{kind}" for kind in ("pdf", "svg", "png")]
    assert files[0].read_bytes().startswith(b"%PDF")
    assert "<svg" in files[1].read_text()
    with Image.open(files[2]) as picture:
        assert len(set(np.asarray(picture.convert("L")).ravel().tolist())) > 10  # not an empty page


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    made = panels("fig-clients", DEMO, lambda config: config.data.clients / 100 + config.seed / 50, (1, 2))
    once, again = (draw_lines(made, tmp_path / name / "figure") for name in ("once", "again"))
    for first, second in zip(once, again, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert b"CreationDate" not in once[0].read_bytes()


def test_class_names_are_not_parsed_as_formulas(tmp_path):
    maps = [PartitionMap("three images", np.array([[3, 0], [0, 2]]), (r"$\frac{", "$_^"))] * 2
    files = draw_heat_maps(maps, tmp_path / "map")
    assert [file.suffix for file in files] == [".pdf", ".svg", ".png"]
    assert all(file.stat().st_size > 1000 for file in files)


def test_csv_of_a_figure():
    made = panels("fig-tau", PAPER, lambda config: 0.6 if config.labels.confidence_quantile == 0.5 else None)
    rows = list(csv.DictReader(io.StringIO(panels_csv(made))))
    row = next(r for r in rows if r["line"] == "DTD" and r["x"] == "0.5")
    assert (row["mean"], row["std"], row["seeds"], row["paper"]) == ("60", "", "1", "60.89")
    missing = next(r for r in rows if r["line"] == "DTD" and r["x"] == "0.9")
    assert (missing["mean"], missing["seeds"], missing["paper"]) == ("", "0", "36.16")
