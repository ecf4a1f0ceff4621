"""The results of a run on the terminal."""

import numpy as np
import pytest

from fedcopl.cli.show import facts, print_outcome, print_results
from fedcopl.run.pseudo_labels import write_labels
from fedcopl.run.record import ClientRecord, HoldoutRecord, Measured, Outcome, RefreshRecord, RoundRecord


def training_fact(before, after):
    rounds = (RoundRecord(round=0, macro=after, untrained=None if before is None else Measured(macro=before)),)
    return dict(facts(Outcome(rounds=rounds, trains=True))).get("training")


@pytest.mark.parametrize(("before", "after"), [(0.8, 0.9), (0.8, 0.795), (None, 0.5), (0.8, None)])
def test_training_without_loss_is_not_mentioned(before, after):
    assert training_fact(before, after) is None


def test_training_that_lost_accuracy_is_reported():
    assert training_fact(0.844, 0.8) == "lost 4.4 points against priors alone: method=priors is better on this data"


@pytest.mark.parametrize("macro", [0.8, None])
@pytest.mark.parametrize("show", [print_results, print_outcome])
def test_the_numbers_stand_under_what_ran(capsys, tmp_path, show, macro):
    run = Outcome(method="PromptFL + FPL + priors", name="demo", rounds=(RoundRecord(round=0, macro=macro),))
    show(run, tmp_path)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "PromptFL + FPL + priors" in first and "demo, seed 0" in f"{first} {second}"


def test_without_labels_priors_confidence_and_rollbacks_are_printed(capsys, tmp_path):
    clients = (ClientRecord(name="north", train=2), ClientRecord(name="site b", train=4))
    refresh = RefreshRecord(round=0, class_prior=((0.25, 0.75), ()))
    rolled_back = HoldoutRecord(trainings_rolled_back=1)
    run = Outcome(
        classes=("cat", "dog"),
        clients=clients,
        rounds=(RoundRecord(round=0, holdout=rolled_back),),
        refreshes=(refresh,),
    )
    write_labels(tmp_path, 0, {"north": np.log([[0.9, 0.1], [0.3, 0.7]]), "site b": np.log([[0.45, 0.4]])})
    print_results(run, tmp_path)
    lines = {line[:22].strip(): line[22:] for line in _lines(capsys)}
    assert lines["mean confidence"] == "68.3 %; 1 of 3 images below 50 %"  # (0.9 + 0.7 + 0.45) / 3
    assert lines["class prior"] == "north: dog 75 %, cat 25 %"
    assert lines["rolled back"].startswith("round 1: 1 site")


def _lines(capsys):
    return capsys.readouterr().out.splitlines()
