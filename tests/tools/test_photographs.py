"""The study on photographs: its runs, its file of finished runs, and its page."""

import json

import pytest

from fedcopl.config import RunConfig, override
from fedcopl.methods import choose_method
from fedcopl_experiments.run_key import code_version
from photographs import COMMON, LABEL_RULES, Finished, ablation_rows, finished, method_rows
from photographs_page import Claim, Runs, comparison_of_label_rules, drift_of, final, gain, page, verdict


def run_of(row, seed, zero_shot=0.5, final=0.6, drift=()):
    run = Finished(
        row=row,
        seed=seed,
        settings=[],
        code="0.1+abc",
        zero_shot=zero_shot,
        final=final,
        label_accuracy=[0.7, 0.8],
        selected=[150, 160],
        drift=list(drift),
        rolled_back=2,
        low_confidence=1,
        seconds=1.0,
    )
    return vars(run)


def rows():
    return [*ablation_rows(), *method_rows()]


def line(seed, settings, code):
    return json.dumps({"seed": seed, "settings": settings, "code": code})


def test_the_settings_of_all_rows_are_valid_and_distinct():
    configs = [RunConfig.from_mapping(override({}, [*COMMON, *row.settings]), row.name) for row in rows()]
    for config in configs:
        choose_method(config)
    assert len({config.to_toml() for config in configs}) == len(configs) == len({row.name for row in rows()})


def test_incomplete_lines_and_runs_of_other_code_are_not_finished(tmp_path):
    file, code = tmp_path / "done.jsonl", code_version()
    lines = [line(1, ["a=1"], code), line(1, ["b=1"], code)[:-9], line(2, [], code), line(3, [], "0.1+other")]
    file.write_text("\n\n".join(lines))
    assert set(finished(file)) == {(1, ("a=1",)), (2, ())}
    assert finished(tmp_path / "none yet") == {}


@pytest.mark.parametrize(
    ("ours", "theirs", "words", "difference"),
    [
        ((0.62, 0.64), (0.60, 0.61), "**holds**", "+2.5 points"),  # by hand: 2 and 3 points
        ((0.60, 0.61), (0.62, 0.64), "**the opposite**", "-2.5 points"),
        ((0.70, 0.60), (0.60, 0.61), "not decided", "+4.5 points"),  # +10 and -1: the signs differ
        ((0.605, 0.605), (0.60, 0.60), "not decided", "+0.5 points"),  # two test images
    ],
)
def test_verdicts_by_hand(ours, theirs, words, difference):
    runs = [run_of("ours", seed, final=value) for seed, value in enumerate(ours)]
    runs += [run_of("theirs", seed, final=value) for seed, value in enumerate(theirs)]
    assert verdict(Runs(runs), Claim("", ("ours", final), ("theirs", final))) == (words, difference, "2")


def test_only_seeds_that_both_have_are_compared():
    runs = [run_of("ours", 1, final=0.9), run_of("ours", 2, final=0.6), run_of("theirs", 2, final=0.5)]
    assert verdict(Runs(runs), Claim("", ("ours", final), ("theirs", final)))[1:] == ("+10.0 points", "1")
    assert verdict(Runs(runs), Claim("", ("ours", final), ("others", final))) == ("no run", "", "0")


def test_cells_are_means_over_the_finished_seeds():
    drift = [{"text": {"diversity": 2.0, "cosine": 0.5}}, {"text": {"diversity": None, "cosine": 1.0}}]
    runs = Runs([run_of("a", 1, 0.5, 0.6, drift=drift), run_of("a", 2, 0.5, 0.7, drift=drift)])
    assert runs.cell("a", final) == "65.0 (2)"
    assert runs.cell("a", gain, "{:+.1f}") == "+15.0 (2)"
    assert runs.cell("a", drift_of("text", "cosine"), "{:.2f}") == "0.75 (2)"  # mean of 0.5 and 1
    assert runs.cell("a", drift_of("text", "diversity"), "{:.2f}") == "2.00 (2)"  # an infinite one is left out
    assert runs.cell("a", drift_of("visual", "cosine")) == runs.cell("b", final) == "no run"


def test_every_row_is_on_the_page():
    drift = [{array: {"diversity": 2.0, "cosine": 0.5} for array in ("text", "visual")}]
    runs = [run_of(row.name, 1, final=0.11 + number / 1000, drift=drift) for number, row in enumerate(rows())]
    text = page(runs, COMMON, (30, 40), LABEL_RULES.read_text())
    assert "no run" not in text
    assert [run["row"] for run in runs if f"{100 * run['final']:.1f} (1)" not in text] == []


def test_the_page_compares_the_label_rules_of_the_baselines():
    paragraph = comparison_of_label_rules(LABEL_RULES.read_text())
    assert paragraph in LABEL_RULES.with_name("photographs.md").read_text()
    # by hand: 60 - 20, 60 - 10, 60 - 40 and 60 - 50
    row = "| photo-clip, CIFAR-10, dirichlet-0.1 | 50.0 | 20.0 | 10.0 | 40.0 | 50.0 | 60.0 |"
    words = " ".join(comparison_of_label_rules(row).split())
    assert "leads by 40.0 and 50.0 points in Table 9, and with the other rule by 20.0 and 10.0:" in words
