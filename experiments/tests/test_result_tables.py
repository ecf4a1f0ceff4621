"""Tables: every number computed by hand from fake runs."""

import csv
import io
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_outcomes import DEMO, NO_RUNS, PAPER, FakeOutcomes
from fedcopl.run.record import Measured, RefreshRecord
from fedcopl_experiments.experiment_catalog import ENTRIES, EXPERIMENTS
from fedcopl_experiments.measures import SeedSample, StoredOutcomes
from fedcopl_experiments.result_tables import build_table
from fedcopl_experiments.run_key import run_key
from fedcopl_experiments.store import ResultStore
from fedcopl_experiments.table_formats import latex, our_number, paper_number, signed, to_csv, to_latex, to_markdown
from stored_runs import failed, stored

TABLES = [experiment for experiment in ENTRIES if experiment.kind != "figure"]


def table(name, setup, rule, seeds=(1,), **more):
    return build_table(EXPERIMENTS[name], setup, FakeOutcomes(rule, **more), seeds)


def entry(made, row, column, block=""):
    [rows] = [b.rows for b in made.blocks if b.title == block]
    return dict(rows)[row][made.columns.index(column)]


def test_mean_and_spread_over_the_seeds():
    # 60, 61, 63: mean 184/3; squared distances 16/9 + 1/9 + 25/9 = 42/9, halved 21/9.
    finals = {1: 0.60, 2: 0.61, 3: 0.63}
    made = table("table2", DEMO, lambda config: finals[config.seed], (1, 2, 3))
    sample = entry(made, ("FedCoPL", "CoPL"), ("digits",)).sample
    assert sample.mean == pytest.approx(184 / 3)
    assert sample.std == pytest.approx(math.sqrt(21 / 9))
    assert our_number(entry(made, ("FedCoPL", "CoPL"), ("digits",)), 1) == "61.3 ± 1.5"
    assert "Mean ± standard deviation over the seeds 1, 2, 3." in made.notes


def test_every_number_names_its_method():
    made = table("table2", DEMO, lambda config: 0.5)
    assert entry(made, ("PromptFL", "FPL"), ("digits",)).runs == "PromptFL + FPL (as published)"
    assert entry(made, ("CLIP", "-"), ("digits",)).runs == "CLIP"
    assert "All methods as published: without priors." in made.notes
    assert "All methods as published: without priors." in to_latex(made)
    [row] = [row for row in csv.DictReader(io.StringIO(to_csv(made))) if row["Method"] == "FedCoPL"]
    assert row["runs"] == "FedCoPL (as published)"
    both = table("grid", DEMO, lambda config: 0.5)
    assert "All methods as published: without priors." not in both.notes
    assert entry(both, ("PromptFL",), ("as published", "FPL")).runs == "PromptFL + FPL (as published)"
    assert entry(both, ("PromptFL",), ("+ priors", "FPL")).runs == "PromptFL + FPL + priors"


def test_one_seed_has_no_spread():
    made = table("table2", DEMO, lambda config: 0.5)
    assert entry(made, ("FedCoPL", "CoPL"), ("digits",)).sample.std is None
    assert "Seed 1 only." in made.notes


def test_paper_number_and_difference_are_shown():
    made = table("table1", PAPER, lambda config: 0.6)
    cell = entry(made, ("FedCoPL", "CoPL"), ("DTD", "β = 0.1"))
    assert cell.difference == pytest.approx(60 - 60.89)
    assert paper_number(cell, 2) == "60.89, −0.89"


def test_tables_of_digits_show_no_paper_numbers():
    for experiment in TABLES:
        assert all(e.paper is None for e in build_table(experiment, DEMO, NO_RUNS, (1,)).entries)


@pytest.mark.parametrize("name", ["table1", "table2", "table4", "table8"])
def test_zero_shot_is_of_the_whole_test_set_as_in_the_paper(name):
    # Two clients with 1 of 1 and 1 of 3 correct: the mean over clients is 2/3, the accuracy on all four images 1/2.
    zero_shot = Measured(macro=2 / 3, weighted=0.5)
    made = table(name, DEMO, lambda config: 0.9, zero_shot=zero_shot)
    assert {e.sample.mean for row, entries in made.blocks[0].rows if row[0] == "CLIP" for e in entries} == {50}
    assert "CLIP: accuracy on the whole test set, as in the paper; the others: mean over the clients." in made.notes


def test_zero_shot_of_the_grid_is_the_mean_over_clients():
    made = table("grid", DEMO, lambda config: 0.9, zero_shot=Measured(macro=0.25, weighted=0.5))
    assert entry(made, ("CLIP",), ("as published", "no labeler")).sample.mean == 25


def test_the_average_is_the_mean_over_the_data_sets_seed_by_seed():
    share = {"dtd": 0.1, "resisc45": 0.2, "cub200": 0.3, "ucf101": 0.4, "cifar10": 0.5, "cifar100": 0.6}
    made = table("table2", PAPER, lambda config: share[config.data.source] + 0.01 * config.seed, (1, 3))
    sample = entry(made, ("PromptFL", "FPL"), ("Average",)).sample
    assert sample.values == pytest.approx((36, 38))


def test_an_average_needs_all_its_data_sets():
    made = table("table2", PAPER, lambda config: None if config.data.source == "dtd" else 0.5)
    assert entry(made, ("PromptFL", "FPL"), ("Average",)).sample.values == ()
    assert entry(made, ("PromptFL", "FPL"), ("CUB",)).sample.values == (50,)


def test_gains_are_counted_seed_by_seed():
    def rule(config):
        return (0.5 if config.labeler == "fpl" else 0.6) + (0.05 if config.seed == 2 else 0)

    made = table("table3", DEMO, rule, (1, 2))
    cell = entry(made, ("PromptFL", "CoPL"), ("digits",))
    assert cell.gain == pytest.approx(10)
    assert our_number(cell, 1) == "62.5 ± 3.5 (+10.0)"
    assert entry(made, ("PromptFL", "FPL"), ("digits",)).gain is None


def test_best_two_of_a_column_are_marked_with_ties():
    final = {"promptfl": 0.70, "promptprox": 0.7004, "pfedprompt": 0.6, "fedotp": 0.65, "fedcopl": 0.1}
    made = table("table4", DEMO, lambda config: final[config.method])
    marks = {row[0]: entries[0].mark for row, entries in made.blocks[0].rows}
    # 70.0 and 70.04 are equal with one decimal, so both are best.
    assert marks == {
        "PromptFL": "best",
        "PromptProx": "best",
        "FedOPT": "second",
        "pFedPrompt": "",
        "CLIP": "",
        "FedCoPL": "",
    }


def test_only_numbers_with_the_most_seeds_are_marked():
    final = {"promptfl": 0.7, "promptprox": 0.9, "pfedprompt": 0.6, "fedotp": 0.5, "fedcopl": 0.1}
    one_seed = {"promptprox"}
    made = table("table4", DEMO, lambda c: final[c.method] if c.seed == 1 or c.method not in one_seed else None, (1, 2))
    marks = {row[0]: entries[0].mark for row, entries in made.blocks[0].rows if entries[0].mark}
    assert marks == {"PromptFL": "best", "pFedPrompt": "second"}


def test_a_sweep_is_marked_along_its_row():
    made = table("table10", DEMO, lambda config: config.labels.confidence_quantile)
    marks = {column[0]: shown.mark for column, shown in zip(made.columns, made.blocks[0].rows[0][1], strict=True)}
    assert [tau for tau, mark in marks.items() if mark] == ["0.80", "0.90"]
    assert marks["0.90"] == "best"


def test_bounds_are_not_marked():
    final = {"central": 0.99, "fedcopl": 0.4, "local": 0.3}
    made = table("grid", DEMO, lambda config: final.get(config.method, 0.2))
    for block in made.blocks:
        assert all(
            not e.mark for row, entries in block.rows if row[0].startswith(("Central", "zero")) for e in entries if e
        )


def test_missing_numbers_are_dashes_with_a_note():
    made = table("table5", DEMO, lambda config: None if config.labels.entropy_filter is False else 0.5, (1, 2))
    assert our_number(entry(made, ("✓", "-", "✓"), ("digits",)), 1) == "–"
    assert "–: 3 of 5 numbers have no run yet." in made.notes
    half = table("table5", DEMO, lambda config: 0.5 if config.seed == 1 else None, (1, 2))
    assert "5 numbers have fewer seeds so far." in half.notes


def test_doubtful_numbers_carry_a_dagger_and_its_reason():
    made = table("table5", PAPER, lambda config: None)
    assert paper_number(entry(made, ("-", "-", "-"), ("DTD",)), 2) == "45.79†"
    assert paper_number(entry(made, ("✓", "✓", "✓"), ("DTD",)), 2) == "60.89"
    assert any(note.startswith("† doubtful in the paper: digit for digit PromptFL") for note in made.notes)
    sizes = table("table7", PAPER, lambda config: None)
    daggers = {e.dagger for e in sizes.entries if e.dagger}
    assert daggers == {"†1", "†2", "†3"}
    assert all(any(note.startswith(f"{dagger} ") for note in sizes.notes) for dagger in daggers)
    assert all(e.dagger == "†" for e in table("table8", PAPER, lambda config: None).entries)


def test_data_set_sizes_need_no_run():
    made = build_table(EXPERIMENTS["table7"], DEMO, NO_RUNS, (1,))
    row = ("digits", "Digit recognition")
    assert [our_number(e, 0) for e in dict(made.blocks[0].rows)[row]] == ["10", "1,198", "599"]


def test_pseudo_labels_of_the_first_refresh():
    refreshes = tuple(
        RefreshRecord(round=n, pseudo_label_accuracy=share, coverage=share - 0.05)
        for n, share in {0: 0.8, 5: 0.99}.items()
    )
    made = table("table9", DEMO, lambda config: 0.5, refreshes=refreshes)
    means = {
        name: entry(made, (name,), ("digits",), "Quantity-based label skew").sample.mean
        for name in ("FPL", "CPL", "CoPL")
    }
    assert means == pytest.approx({"FPL": 80, "CPL": 75, "CoPL": 80})  # of CPL: share of sets that contain the label


@pytest.mark.parametrize(
    ("number", "text"), [(1.25, "+1.2"), (-1.26, "−1.3"), (0.04, "0.0"), (-0.04, "0.0"), (1234.5, "+1,234.5")]
)
def test_signed(number, text):
    assert signed(number, 1) == text


@pytest.mark.parametrize("setup", [PAPER, DEMO], ids=["paper", "demo"])
@pytest.mark.parametrize("experiment", TABLES, ids=lambda experiment: experiment.name)
def test_markdown_is_a_table(experiment, setup):
    lines = to_markdown(build_table(experiment, setup, FakeOutcomes(lambda config: 0.5), (1,))).splitlines()
    pipes = [line for line in lines if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in pipes}) == 1
    assert re.fullmatch(r"\|(---\|)+(---:\|)+", pipes[1])


def test_markdown_marks_and_compares():
    final = {"fedcopl": 0.61, "promptfl": 0.5, "promptprox": 0.4, "pfedprompt": 0.3, "fedotp": 0.2}
    text = to_markdown(table("table4", PAPER, lambda config: final[config.method]))
    row = next(line for line in text.splitlines() if line.startswith("| FedCoPL"))
    assert "**61.00**<br>56.83, +4.17" in row
    assert "<u>50.00</u><br>44.36, +5.64" in text


def columns_of(line):
    """Return the number of columns of a line of a LaTeX table."""
    wide = [int(number) for number in re.findall(r"\\multicolumn\{(\d+)\}", line)]
    return len(re.findall(r"(?<!\\)&", line)) + 1 + sum(wide) - len(wide)


@pytest.mark.parametrize("setup", [PAPER, DEMO], ids=["paper", "demo"])
@pytest.mark.parametrize("experiment", TABLES, ids=lambda experiment: experiment.name)
def test_latex_is_well_formed(experiment, setup):
    text = to_latex(build_table(experiment, setup, FakeOutcomes(lambda config: 0.5), (1, 2)))
    plain = re.sub(r"\\[\\{}]", "", text)  # without line breaks and written-out braces
    assert plain.count("{") == plain.count("}")
    opened, closed = (re.findall(rf"\\{word}\{{(\w+\*?)\}}", text) for word in ("begin", "end"))
    assert opened == closed[::-1]
    [kinds] = re.findall(r"\\begin\{tabular\}\{(l+c+)\}", text)
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {columns_of(line) for line in rows} == {len(kinds)}
    assert text.isascii()  # as plain LaTeX requires
    assert not re.search(r"(?<!\\)[#%_](?!$| needs)", re.sub(r"\$[^$]*\$|%$", "", text, flags=re.M))


@given(st.text())
def test_latex_text_is_escaped(text):
    written = latex(text)
    assert not re.search(r"(?<![\\])[&%#_]", re.sub(r"\$\\tau_[12]\$", "", written))


def test_latex_marks_as_the_paper_does():
    final = {"fedcopl": 0.61, "promptfl": 0.5, "promptprox": 0.4, "pfedprompt": 0.3, "fedotp": 0.2}
    text = to_latex(table("table4", DEMO, lambda config: final[config.method]))
    assert r"FedCoPL & CoPL & \textbf{61.0} \\" in text
    assert r"CLIP & - & \underline{50.0} \\" in text


def test_csv_has_one_line_for_each_number():
    made = table("table3", PAPER, lambda config: 0.5, (1, 2))
    lines = list(csv.DictReader(io.StringIO(to_csv(made))))
    assert len(lines) == 30
    doubtful = next(line for line in lines if line["Method"] == "pFedPrompt" and line["doubt"])
    assert (doubtful["column"], doubtful["paper"], doubtful["paper_gain"]) == ("CUB", "52.77", "2.29")
    assert (doubtful["mean"], doubtful["std"], doubtful["seeds"], doubtful["gain"]) == ("50", "0", "2", "0")
    assert doubtful["difference"] == "-2.77"


def test_outcomes_of_this_version_or_of_any(tmp_path):
    config = DEMO.config("digits")
    store = ResultStore(tmp_path / "results.sqlite")
    store.record(stored("an older program's key", 0.625, **config.model_dump()))
    assert StoredOutcomes(store).outcome(config) is None
    assert StoredOutcomes(store, any_code=True).outcome(config).final.macro == 0.625
    store.record(stored(run_key(config), 0.75, **config.model_dump()))
    for outcomes in (StoredOutcomes(store), StoredOutcomes(store, any_code=True)):
        assert outcomes.outcome(config).final.macro == 0.75


def test_run_with_fewer_rounds_than_configured_is_found(tmp_path):
    config = DEMO.config("digits", "transclip")  # trains nothing, so it has one round
    store = ResultStore(tmp_path / "results.sqlite")
    store.record(stored("an older program's key", 0.625, **{**config.model_dump(), "rounds": 1}))
    assert StoredOutcomes(store, any_code=True).outcome(config).final.macro == 0.625


def test_failed_runs_have_no_outcome(tmp_path):
    config = DEMO.config("digits")
    store = ResultStore(tmp_path / "results.sqlite")
    store.record(failed(run_key(config)))
    assert StoredOutcomes(store).outcome(config) is None
    assert StoredOutcomes(store, any_code=True).outcome(config) is None


def test_empty_sample():
    assert SeedSample(()).mean is None
    assert SeedSample(()).std is None
