"""Each measure returns the right number of a run in which all numbers differ."""

from dataclasses import replace

import pytest

from fake_outcomes import DEMO
from fedcopl.config import RunConfig
from fedcopl.run.record import Drift, Measured, Outcome, RefreshRecord, RoundRecord
from fedcopl_experiments.experiment_catalog import EXPERIMENTS
from fedcopl_experiments.measures import CURVES, NUMBERS
from fedcopl_experiments.result_tables import build_table
from fedcopl_experiments.store.stored_run import headline


def round_of(number, macro, weighted, everywhere, **more):
    drift = {"visual": Drift(diversity=1 + number, cosine=0.1 + number), "text": Drift(diversity=9.0, cosine=8.0)}
    return RoundRecord(
        round=number, macro=macro, weighted=weighted, everywhere=everywhere, drift=drift, bytes_up=1000, **more
    )


RUN = Outcome(
    zero_shot=Measured(macro=0.40, weighted=0.41, everywhere=0.42),
    shared=("visual",),
    seconds=12.0,
    rounds=(
        round_of(0, 0.50, 0.51, 0.52, recall=(0.1, 0.9)),
        round_of(1, 0.70, 0.71, 0.72, recall=(0.6, 0.3)),  # the best round is not the last
        round_of(2, 0.60, 0.61, 0.62, recall=(0.8, 0.4)),
    ),
    refreshes=(
        RefreshRecord(round=0, images=7, pseudo_label_accuracy=0.9),
        RefreshRecord(round=1, images=8, pseudo_label_accuracy=0.8),
        RefreshRecord(round=2, images=5, pseudo_label_accuracy=0.7),
    ),
)


@pytest.mark.parametrize(
    ("measure", "number"),
    [
        ("final", 60),  # macro accuracy of the last round
        ("zero_shot", 40),
        ("zero_shot_of_all", 41),  # weighted by images
        ("first_labels", 90),
        ("kilobytes_up", 1),  # per round
        ("seconds", 12),
    ],
)
def test_each_measure_reads_its_own_number(measure, number):
    assert NUMBERS[measure](RUN) == pytest.approx(number)


def test_each_curve_reads_its_own_numbers():
    def curve(name):
        return [(round, pytest.approx(value)) for round, value in CURVES[name](RUN)]

    assert curve("accuracy") == [(1, 50), (2, 70), (3, 60)]
    assert curve("labels") == [(1, 90), (2, 80), (3, 70)]
    assert curve("diversity-visual") == [(1, 1), (2, 2), (3, 3)]
    assert curve("cosine-text") == [(1, 8), (2, 8), (3, 8)]


def test_a_round_that_was_not_measured_is_neither_final_nor_in_a_curve():
    unmeasured = replace(RUN, rounds=(*RUN.rounds, RoundRecord(round=3)))
    assert NUMBERS["final"](unmeasured) == pytest.approx(60)
    assert len(CURVES["accuracy"](unmeasured)) == 3


def test_table_shows_macro_of_the_last_round():
    class OneRun:
        def outcome(self, config: RunConfig):
            return replace(RUN, settings=config.model_dump())

    for name in ("table1", "table2", "table5", "table11"):
        made = build_table(EXPERIMENTS[name], DEMO, OneRun(), (1,))
        ours = [entry.sample.mean for block in made.blocks for row, entries in block.rows for entry in entries if entry]
        assert pytest.approx(60) in ours, name
        assert not [mean for mean in ours if mean in map(pytest.approx, (61, 62, 70, 71, 72))], name


def test_final_and_best_are_distinct():
    numbers = headline(RUN)
    assert [numbers[f"final.{kind}"] for kind in ("macro", "weighted", "global")] == [0.60, 0.61, 0.62]
    assert [numbers[f"best.{kind}"] for kind in ("macro", "weighted", "global")] == [0.70, 0.71, 0.72]
    assert numbers["pseudo_label_accuracy"] == 0.7
