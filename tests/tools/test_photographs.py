"""The page about photographs: what is played, what is kept of it, and what is said of it."""

import json

import pytest

from fedcopl.config import RunConfig, override
from fedcopl.methods import choose_method
from fedcopl_experiments.run_key import code_version
from photographs import COMMON, READINGS, Finished, finished, other_rows, own_rows
from photographs_page import Claim, Runs, drift_of, final, gain, page, verdict, with_the_other_rule


def run_of(row, seed, zero_shot=0.5, final=0.6, labels=(0.7, 0.8), drift=()):
    whole = Finished(
        row=row,
        seed=seed,
        settings=[],
        code="0.1+abc",
        zero_shot=zero_shot,
        final=final,
        labels=list(labels),
        chosen=[150, 160],
        drift=list(drift),
        undone=2,
        doubtful=1,
        seconds=1.0,
    )
    return vars(whole)


def rows():
    return [*own_rows(), *other_rows()]


def line(seed, settings, code):
    return json.dumps({"seed": seed, "settings": settings, "code": code})


def test_every_row_can_be_played_and_none_is_played_twice():
    configs = [RunConfig.from_mapping(override({}, [*COMMON, *row.settings]), row.name) for row in rows()]
    for config in configs:
        choose_method(config)
    assert len({config.to_toml() for config in configs}) == len(configs) == len({row.name for row in rows()})


def test_what_a_stop_cut_off_or_other_code_played_is_played_again(tmp_path):
    file, mine = tmp_path / "done.jsonl", code_version()
    lines = [line(1, ["a=1"], mine), line(1, ["b=1"], mine)[:-9], line(2, [], mine), line(3, [], "0.1+other")]
    file.write_text("\n\n".join(lines))
    assert set(finished(file)) == {(1, ("a=1",)), (2, ())}
    assert finished(tmp_path / "none yet") == {}


@pytest.mark.parametrize(
    ("ours", "theirs", "words", "difference"),
    [
        ((0.62, 0.64), (0.60, 0.61), "**holds**", "+2.5 points"),  # by hand: 2 and 3 points
        ((0.60, 0.61), (0.62, 0.64), "**the opposite**", "-2.5 points"),
        ((0.70, 0.60), (0.60, 0.61), "not decided", "+4.5 points"),  # 10 and -1: no sign of its own
        ((0.605, 0.605), (0.60, 0.60), "not decided", "+0.5 points"),  # two test images
    ],
)
def test_verdicts_by_hand(ours, theirs, words, difference):
    played = [run_of("ours", seed, final=value) for seed, value in enumerate(ours)]
    played += [run_of("theirs", seed, final=value) for seed, value in enumerate(theirs)]
    found = verdict(Runs(played), Claim("", ("ours", final), ("theirs", final)))
    assert found == (words, difference, "2")


def test_only_seeds_that_both_have_are_compared():
    played = [run_of("ours", 1, final=0.9), run_of("ours", 2, final=0.6), run_of("theirs", 2, final=0.5)]
    assert verdict(Runs(played), Claim("", ("ours", final), ("theirs", final)))[1:] == ("+10.0 points", "1")
    assert verdict(Runs(played), Claim("", ("ours", final), ("others", final))) == ("not played", "", "0")


def test_cells_are_means_over_the_seeds_that_are_there():
    drift = [{"text": {"diversity": 2.0, "cosine": 0.5}}, {"text": {"diversity": None, "cosine": 1.0}}]
    runs = Runs([run_of("a", 1, 0.5, 0.6, drift=drift), run_of("a", 2, 0.5, 0.7, drift=drift)])
    assert runs.cell("a", final) == "65.0 (2)"
    assert runs.cell("a", gain, "{:+.1f}") == "+15.0 (2)"
    assert runs.cell("a", drift_of("text", "cosine"), "{:.2f}") == "0.75 (2)"  # mean of 0.5 and 1
    assert runs.cell("a", drift_of("text", "diversity"), "{:.2f}") == "2.00 (2)"  # an infinite one is left out
    assert runs.cell("a", drift_of("visual", "cosine")) == runs.cell("b", final) == "not played"


def test_every_row_that_is_played_is_on_the_page():
    drift = [{array: {"diversity": 2.0, "cosine": 0.5} for array in ("text", "visual")}]
    played = [run_of(row.name, 1, final=0.11 + number / 1000, drift=drift) for number, row in enumerate(rows())]
    text = page(played, COMMON, (30, 40), READINGS.read_text())
    assert "not played" not in text
    assert [run["row"] for run in played if f"{100 * run['final']:.1f} (1)" not in text] == []


def test_page_names_the_label_rules_of_the_baselines():
    said = with_the_other_rule(READINGS.read_text())
    assert said in READINGS.with_name("photographs.md").read_text()
    # by hand: 60 - 20, 60 - 10, 60 - 40 and 60 - 50
    row = "| photo-clip, CIFAR-10, dirichlet-0.1 | 50.0 | 20.0 | 10.0 | 40.0 | 50.0 | 60.0 |"
    words = " ".join(with_the_other_rule(row).split())
    assert "leads by 40.0 and 50.0 points in Table 9, and with the other rule by 20.0 and 10.0:" in words
