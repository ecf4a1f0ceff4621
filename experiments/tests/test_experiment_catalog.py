"""The runs of each table and figure."""

import re
from pathlib import Path

import pytest

from fake_outcomes import DEMO, PAPER, SMOKE
from fedcopl.config import AS_PUBLISHED, RunConfig, is_as_published
from fedcopl.errors import ConfigError
from fedcopl.labelers import LABELERS
from fedcopl.methods import METHODS, choose_method
from fedcopl.methods.base import Method
from fedcopl_experiments.experiment_catalog import ALIASES, ENTRIES, EXPERIMENTS, find_experiments, runs_of
from fedcopl_experiments.flat_settings import flat
from fedcopl_experiments.grid_methods import grid_methods, untrained_methods
from fedcopl_experiments.run_key import run_key
from fedcopl_experiments.scales import ExperimentSetup, find_scale

TEN = ("dtd", "resisc45", "cifar10", "cifar100")


def configs(name, setup, **where):
    """Return the settings of an experiment's cells, by row."""
    cells = [cell for cell in EXPERIMENTS[name].cells(setup) if all(getattr(cell, k) == v for k, v in where.items())]
    return {cell.row: cell.configs[0] for cell in cells}


def test_there_is_a_name_for_each_table_and_figure():
    tables = {f"table{number}" for number in range(1, 12)}
    figures = {"fig-drift", "fig-clients", "fig-participation", "fig-partition", "fig-allocation"}
    ours = {"fig-accuracy", "fig-tau", "grid"}
    assert set(EXPERIMENTS) == tables | figures | ours
    assert [e.name for e in find_experiments(["all"])] == list(EXPERIMENTS)
    assert [e.name for e in find_experiments(["table10", "sweep-tau"])] == ["table10", "table11", "fig-tau"]


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"tabel1: there is no such table or figure .*did you mean table1"):
        find_experiments(["tabel1"])


def test_scale_paper_has_the_papers_settings():
    for dataset in (*TEN, "cub200", "ucf101"):
        config = PAPER.config(dataset)
        assert config.model.backbone == "ViT-B/32"
        assert config.data.clients == (10 if dataset in TEN else 5)
        assert (config.data.partition, config.data.beta) == ("dirichlet", 0.1)
        assert (config.rounds, config.train.epochs, config.labels.refresh_every) == (20, 10, 5)
        assert (config.train.batch, config.train.lr, config.train.momentum) == (64, 0.1, 0.9)
        assert config.sharing.participation == 1.0
        assert (config.data.source, config.data.path) == (dataset, f"data/{dataset}")
    assert find_scale("paper").seeds == 3


def test_scale_paper_differs_from_the_defaults_only_in_named_settings():
    chosen = {"name", "data.source", "data.path", "model.backbone", "evaluation.every", "evaluation.everywhere"}
    chosen |= set(AS_PUBLISHED)
    config, usual = flat(PAPER.config("dtd").model_dump()), flat(RunConfig().model_dump())
    assert {key for key in usual if config[key] != usual[key]} <= chosen


def test_demo_is_the_built_in_demo():
    config = DEMO.config("digits")
    assert (config.model.backbone, config.data.source, config.data.path) == ("glyph-clip", "digits", "")
    assert (config.data.clients, config.rounds, config.train.epochs) == (5, 10, 4)


def test_table1_has_both_skews_of_all_six():
    cells = EXPERIMENTS["table1"].cells(PAPER)
    betas = {(cell.configs[0].data.source, cell.configs[0].data.beta) for cell in cells}
    assert len(betas) == 12
    assert {cell.configs[0].data.beta for cell in cells if cell.column[1] == "β = 0.05"} == {0.05}
    assert all(len(cell.configs) == (6 if cell.column[0] == "Average" else 1) for cell in cells)
    row = configs("table1", PAPER, column=("DTD", "β = 0.1"))
    assert (row["FedOPT", "CPL"].method, row["FedOPT", "CPL"].labeler) == ("fedotp", "cpl")
    assert (row["FedCoPL", "CoPL"].method, row["FedCoPL", "CoPL"].labeler) == ("fedcopl", "copl")


@pytest.mark.parametrize("table", ["table1", "table2", "table4", "table8"])
def test_zero_shot_in_paper_tables_is_over_all_test_images(table):
    # The paper prints the same number under every skew.
    measures = {cell.row[0]: cell.measure for cell in EXPERIMENTS[table].cells(PAPER)}
    assert measures.pop("CLIP") == "zero_shot_of_all"
    assert set(measures.values()) == {"final"}


def test_label_rules_of_the_papers_tables_and_of_the_grid():
    for name, among, likeliest in (
        ("table1", "confident", True),
        ("table9", "confident", True),
        ("grid", "all", False),
    ):
        runs = [c for cell in EXPERIMENTS[name].cells(DEMO) for c in cell.configs]
        baselines = [c.labels for c in runs if c.labeler != "copl"]
        assert {(labels.among, labels.cpl_keep_likeliest) for labels in baselines} == {(among, likeliest)}
        assert {c.labels.among for c in runs if c.labeler == "copl"} == {"all"}  # CoPL has its own filters


def test_table2_is_the_quantity_skew():
    assert {c.data.partition for cell in EXPERIMENTS["table2"].cells(PAPER) for c in cell.configs} == {"quantity"}


def test_other_backbones():
    assert {c.model.backbone for c in configs("table4", PAPER).values()} == {"ViT-B/16"}
    assert {c.model.backbone for c in configs("table8", PAPER).values()} == {"RN50"}
    mine = ExperimentSetup(find_scale("paper"), backbone="ViT-L/14")
    assert {c.model.backbone for c in configs("table4", mine).values()} == {"ViT-L/14"}
    assert PAPER.is_paper
    assert not mine.is_paper
    assert not DEMO.is_paper


def test_ablation_rows_switch_their_settings():
    for row, config in configs("table5", DEMO).items():
        labels = config.labels
        switches = (labels.confidence_filter, labels.entropy_filter, labels.global_allocation)
        assert tuple("✓" if on else "-" for on in switches) == row
    aggregated = {row: config.sharing.aggregate for row, config in configs("table6", DEMO).items()}
    assert aggregated == {("-", "-"): "none", ("✓", "✓"): "both", ("✓", "-"): "text", ("-", "✓"): "visual"}


def test_each_sweep_changes_one_level():
    for name, moved, kept in (
        ("table10", "confidence_quantile", "entropy_quantile"),
        ("table11", "entropy_quantile", "confidence_quantile"),
    ):
        cells = EXPERIMENTS[name].cells(DEMO)
        assert len(cells) == 15
        for cell in cells:
            assert getattr(cell.configs[0].labels, moved) == float(cell.column[0])
            assert getattr(cell.configs[0].labels, kept) == 0.5


def test_the_figures_about_clients():
    client_counts = {
        int(cell.column[1]): cell.configs[0].data.clients for cell in EXPERIMENTS["fig-clients"].cells(PAPER)
    }
    assert client_counts == {5: 5, 10: 10, 30: 30, 50: 50}
    cells = EXPERIMENTS["fig-participation"].cells(PAPER)
    assert {cell.column[1]: cell.configs[0].sharing.participation for cell in cells} == {"0.5": 0.5, "0.8": 0.8, "1": 1}


def test_the_grid_has_every_method_and_the_upper_bounds():
    cells = EXPERIMENTS["grid"].cells(DEMO)
    trained = {name for name in METHODS if choose_method(RunConfig(method=name)).trains}
    fitted = {method.name: method.title for method in untrained_methods()}
    # without the other spelling of FedOTP; with the methods that fit a model to each site, and priors alone
    assert {cell.configs[0].method for cell in cells} == trained - {"fedopt"} | set(fitted) | {"priors"}
    untrained = [cell for cell in cells if cell.row[0] in fitted.values() and cell.column[0] != "cost"]
    assert {cell.column for cell in untrained} == {("as published", "no labeler"), ("+ priors", "no labeler")}
    rows = configs("grid", DEMO, column=("as published", "no labeler"))
    assert rows["Central + true labels",].options == {"labels": "truth"}
    unranked = {cell.row for cell in cells if not cell.ranked and cell.column[0] != "cost"}
    assert unranked == {("Central",), ("Central + true labels",)}


def test_the_grid_has_every_labeler():
    columns = {cell.column for cell in EXPERIMENTS["grid"].cells(DEMO) if cell.column[0] != "cost"}
    titles = {labeler.title for labeler in LABELERS.values()} | {"no labeler"}
    assert columns == {(variant, title) for variant in ("as published", "+ priors") for title in titles}


def test_an_interrupted_grid_has_complete_columns():
    runs = [run for run in runs_of([EXPERIMENTS["grid"]], DEMO, [1]) if run.method != "priors"]
    order = [(run.priors.logit_bias, list(LABELERS).index(run.labeler)) for run in runs]
    assert order == sorted(order)


class Biased(Method):
    """A method outside the package."""

    title, display_names = "FedBias", {"text": "text prompts", "bias": "a bias for each class"}

    def shared(self):
        return ("text", "bias")


class Pooled(Method):
    title, centralised = "AllInOne", True


class Untrained(Method):
    title, trains = "Nothing", False


def test_new_method_gets_a_grid_row(monkeypatch):
    before = [method.title for method in grid_methods()]
    monkeypatch.setitem(METHODS, "fedbias", Biased)
    monkeypatch.setitem(METHODS, "fed-bias", Biased)  # another name of the same method
    monkeypatch.setitem(METHODS, "pooled", Pooled)
    monkeypatch.setitem(METHODS, "untrained", Untrained)
    rows = list(dict.fromkeys(cell.row[0] for cell in EXPERIMENTS["grid"].cells(DEMO)))
    fitted = [method.title for method in untrained_methods()]
    assert rows == [
        "CLIP",
        *fitted,
        "Central + true labels",
        *before[:-2],
        "FedBias",
        *before[-2:],
        "AllInOne",
    ]
    mine = [cell for cell in EXPERIMENTS["grid"].cells(DEMO) if cell.row == ("FedBias",)]
    assert {(cell.configs[0].method, cell.configs[0].labeler) for cell in mine} == {
        ("fedbias", labeler) for labeler in LABELERS
    }
    assert all(cell.ranked for cell in mine if cell.column[0] != "cost")
    assert not any(cell.ranked for cell in EXPERIMENTS["grid"].cells(DEMO) if cell.row == ("AllInOne",))


def test_methods_without_federation_come_last():
    assert [method.title for method in grid_methods()][-2:] == ["Local", "Central"]
    assert [method.name for method in grid_methods() if method.accepts_true_labels] == ["central"]


def test_the_papers_tables_do_not_grow_with_the_methods(monkeypatch):
    before = {name: EXPERIMENTS[name].cells(PAPER) for name in EXPERIMENTS if not name.startswith("grid")}
    monkeypatch.setitem(METHODS, "fedbias", Biased)
    assert {name: EXPERIMENTS[name].cells(PAPER) for name in before} == before


@pytest.mark.parametrize("setup", [PAPER, DEMO, SMOKE], ids=lambda setup: setup.scale.name)
def test_every_run_has_valid_settings(setup):
    for config in runs_of(ENTRIES, setup, [1]):
        choose_method(config)


@pytest.mark.parametrize("setup", [PAPER, DEMO, SMOKE], ids=lambda setup: setup.scale.name)
def test_every_cell_is_filled_once(setup):
    for experiment in ENTRIES:
        keys = [(cell.block, cell.row, cell.column) for cell in experiment.cells(setup)]
        assert keys
        assert len(set(keys)) == len(keys)


def test_runs_are_shared():
    def keys(*names):
        return {run_key(config) for config in runs_of(find_experiments(names), DEMO, [1])}

    assert keys("table4") < keys("table1")
    assert keys("fig-accuracy") < keys("table1")
    assert keys("table6") & keys("fig-drift") == keys("fig-drift")
    assert keys("table10") | keys("table11") == keys("fig-tau")
    runs = runs_of(ENTRIES, DEMO, [1])
    assert len({run_key(config) for config in runs}) == len(runs)


def test_runs_are_sorted_by_seed():
    runs = runs_of(find_experiments(["table5"]), DEMO, [4, 7])
    assert [run.seed for run in runs] == [4] * 5 + [7] * 5


def test_smoke_is_small():
    runs = runs_of(ENTRIES, SMOKE, [1])
    assert len(runs) <= 55 + 2 * len(grid_methods())  # each method as published and with the default settings
    assert {(run.rounds, run.train.epochs) for run in runs} == {(1, 1)}


def test_only_runs_of_curves_are_measured_in_every_round():
    drawn = {run_key(c) for c in runs_of(find_experiments(["fig-accuracy"]), DEMO, [1])}
    for config in runs_of(ENTRIES, DEMO, [1]):
        assert config.evaluation.every == (1 if run_key(config) in drawn else config.rounds)


def test_names_list_the_changed_settings():
    assert DEMO.config("digits", changes={"sharing.aggregate": "visual"}) == DEMO.config("digits")
    config = DEMO.config("digits", changes={"sharing.aggregate": "both", "labels.entropy_filter": False})
    assert config.name == "fedcopl-copl-digits-aggregate-both-no-entropy-filter"


def test_only_the_given_data_sets():
    setup = ExperimentSetup(find_scale("paper"), ("cub200",))
    assert {cell.column[0] for cell in EXPERIMENTS["table1"].cells(setup)} == {"CUB"}
    assert EXPERIMENTS["fig-clients"].cells(setup) == []
    with pytest.raises(
        ConfigError, match="--dataset: there is no data set 'birds', and no folder or file of this name"
    ):
        ExperimentSetup(find_scale("paper"), ("birds",)).check()
    with pytest.raises(ConfigError, match="--backbone: birds: is not one of the data sets given by --dataset"):
        ExperimentSetup(find_scale("paper"), ("cub200",), backbones={"birds": "RN50"}).check()


def test_folders_and_features_are_blocks_of_the_grid(tmp_path):
    (tmp_path / "birds").mkdir()
    (tmp_path / "dtd.npz").touch()
    given = ("digits", "birds", "dtd.npz")
    setup = ExperimentSetup(find_scale("short"), given, folder=tmp_path, backbones={"birds": "models/own"})
    setup.check()
    cells = EXPERIMENTS["grid"].cells(setup)
    blocks = {block: [cell for cell in cells if cell.block == block] for block in dict.fromkeys(c.block for c in cells)}
    assert list(blocks) == ["digits, glyph-clip", "birds, own", "DTD, stored features"]
    digits, birds, features = ([c for cell in block for c in cell.configs] for block in blocks.values())
    assert {(c.data.source, c.model.backbone, c.train.batch) for c in digits} == {
        ("digits", "glyph-clip", batch) for batch in (32, 64)
    }
    assert {(c.data.source, c.data.path, c.model.backbone, c.train.batch) for c in birds} == {
        ("folder", str(tmp_path / "birds"), "models/own", 8)
    }
    file = str(tmp_path / "dtd.npz")
    assert {(c.data.source, c.data.path, c.model.backbone) for c in features} == {("features", file, file)}
    # Methods that encode each image once and whose class features depend on no array.
    assert {c.method for c in features} == {"priors", "transclip", "stata", "bca", "fedclip", "fst"}


def test_only_the_given_methods_and_labelers():
    setup = ExperimentSetup(find_scale("short"), methods=("fst", "bca"), labelers=("upl", "copl"))
    runs = runs_of([EXPERIMENTS["grid"]], setup, [1])
    assert {(run.method, run.labeler) for run in runs} == {("bca", "copl"), ("fst", "copl"), ("fst", "upl")}


def documented_runs(text):
    """Parse `186`, `18 for each method, and 6`, or `18 for each method with labelers, and 6 for the others`."""
    each, more = re.fullmatch(
        r"(?:(\d+) for each method(?: with labelers)?, and )?(\d+)(?: for the others)?", text
    ).groups()
    return int(each or 0) * len(grid_methods()) + int(more)


def count_of(name, setup):
    return len(runs_of(find_experiments([name]), setup, range(setup.scale.seeds)))


@pytest.fixture(scope="module")
def counts():
    """Number of runs of each experiment at the scales demo and paper."""
    return {name: tuple(count_of(name, setup) for setup in (DEMO, PAPER)) for name in (*EXPERIMENTS, *ALIASES)}


def test_the_document_counts_the_runs(counts):
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|[^|]*\| (\d[^|]*) \| (\d[^|]*) \|", page, re.M)
    assert {name: tuple(map(documented_runs, documented)) for name, *documented in rows} == counts


def test_runs_of_one_more_method_are_as_documented(counts, monkeypatch):
    monkeypatch.setitem(METHODS, "fedbias", Biased)
    for name, more in {"grid": (36, 216), "all": (36, 216)}.items():
        now = (count_of(name, setup) for setup in (DEMO, PAPER))
        assert tuple(after - before for after, before in zip(now, counts[name], strict=True)) == more


def test_variant_with_priors_has_the_defaults():
    published, default_settings = (configs("grid", DEMO, column=(word, "FPL")) for word in ("as published", "+ priors"))
    assert set(published) == set(default_settings) == {(method.title,) for method in grid_methods()}
    defaults = flat(RunConfig().model_dump())
    for row, config in published.items():
        assert is_as_published(config)
        before, after = flat(config.model_dump()), flat(default_settings[row].model_dump())
        changed = {name for name in after if after[name] != before[name]} - {"name"}
        assert changed <= set(AS_PUBLISHED)
        assert all(after[name] == defaults[name] for name in AS_PUBLISHED)
        assert after["priors.logit_bias"] and after["priors.label_shift"] and after["priors.prototypes"]
