"""The results of a run on the terminal."""

import numpy as np
import pytest

from fedcopl.cli.show import _facts, print_outcome, print_results
from fedcopl.run.pseudo_labels import write_labels
from fedcopl.run.record import ClientRecord, HoldoutRecord, Measured, Outcome, RefreshRecord, RoundRecord


def training_fact(before, after):
    rounds = (RoundRecord(round=0, macro=after, untrained=None if before is None else Measured(macro=before)),)
    return dict(_facts(Outcome(rounds=rounds, trains=True))).get("training")


@pytest.mark.parametrize(("before", "after"), [(0.8, 0.9), (0.8, 0.795), (None, 0.5), (0.8, None)])
def test_training_without_loss_is_not_mentioned(before, after):
    assert training_fact(before, after) is None


def test_training_that_lost_accuracy_is_reported():
    assert training_fact(0.844, 0.8) == "lost 4.4 points against priors alone: method=priors is better on this data"


@pytest.mark.parametrize("macro", [0.8, None])
@pytest.mark.parametrize("show", [print_results, print_outcome])
def test_the_title_of_the_terminal_output_names_the_method(capsys, tmp_path, show, macro):
    run = Outcome(method="PromptFL + FPL + priors", name="demo", rounds=(RoundRecord(round=0, macro=macro),))
    show(run, tmp_path)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "PromptFL + FPL + priors" in first and "demo, seed 0" in f"{first} {second}"


def test_without_labels_priors_confidence_and_rollbacks_are_printed(capsys, tmp_path):
    clients = (ClientRecord(name="north", train=2), ClientRecord(name="site b", train=4))
    refresh = RefreshRecord(round=0, class_prior=((0.25, 0.75), (0.5, 0.5)))
    rolled_back = HoldoutRecord(trainings_rolled_back=1)
    run = Outcome(
        classes=("cat", "dog"),
        clients=clients,
        rounds=(RoundRecord(round=0, holdout=rolled_back),),
        refreshes=(refresh,),
    )
    north = np.log(np.repeat([[0.9, 0.1], [0.2, 0.8]], 50, axis=0))
    write_labels(tmp_path, 0, {"north": north, "site b": np.log([[0.45, 0.4]])})
    print_results(run, tmp_path)
    printed = _lines(capsys)
    lines = {line[:22].strip(): line[22:] for line in reversed(printed)}
    assert lines["mean confidence"] == "84.6 %; 1 of 101 images below 50 %"  # (45 + 40 + 0.45) / 101
    # errors of 50 (0.1 + 0.2) / 100 = 0.15, so a margin of 0.15 + 2 sqrt((0.15 + 0.01) / 100) = 0.23
    assert lines["class prior"] == "north: cat 55 % (32 to 78), dog 45 % (22 to 68)"
    assert lines["rolled back"].startswith("round 1: 1 site")


def test_of_many_clients_the_terminal_names_some_and_counts_the_others(capsys, tmp_path):
    names = [f"site-{k}" for k in range(12)]
    refresh = RefreshRecord(round=0, class_prior=((0.5, 0.5),) * 12)
    clients = tuple(ClientRecord(name=name, train=1) for name in names)
    run = Outcome(classes=("cat", "dog"), clients=clients, rounds=(RoundRecord(round=0),), refreshes=(refresh,))
    write_labels(tmp_path, 0, {name: np.log([[0.9, 0.1]]) for name in names})
    print_results(run, tmp_path)
    priors = [line[22:] for line in _lines(capsys) if line.startswith("class prior")]
    assert len(priors) == 11 and priors[-1] == "2 more clients: see the report"


def test_a_run_that_trains_nothing_uses_no_images_and_rolls_nothing_back():
    client = ClientRecord(name="north", train=7)
    titles = dict(_facts(Outcome(clients=(client,), rounds=(RoundRecord(round=0),), trains=False)))
    assert titles["images"] == "7, 1 client" and "rolled back" not in titles


def _lines(capsys):
    return capsys.readouterr().out.splitlines()
