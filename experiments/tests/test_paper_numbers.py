"""The numbers of the paper's tables are consistent, except for those that are listed here."""

from collections import defaultdict
from decimal import Decimal

import pytest

from fedcopl_experiments.experiment_catalog import EXPERIMENTS
from fedcopl_experiments.paper_numbers import paper_tables
from fedcopl_experiments.scales import ExperimentSetup, find_scale

SIX = ("DTD", "RESISC45", "CUB", "UCF101", "CIFAR10", "CIFAR100")
SKEWS = (("β = 0.1",), ("β = 0.05",))
CENT = Decimal("0.01")


def value(name, row, column, block=""):
    """Return a number as printed, with exactly two decimals."""
    number = paper_tables()[name].find(row, column, block)
    assert number is not None, (name, row, column)
    return Decimal(str(number.value)).quantize(CENT)


def rows(name):
    return list(dict.fromkeys(row for _, row, _ in paper_tables()[name].numbers))


def columns(name):
    return list(dict.fromkeys(column for _, _, column in paper_tables()[name].numbers))


def test_every_table_has_all_numbers_of_the_paper():
    sizes = {name: len(table.numbers) for name, table in paper_tables().items()}
    assert sizes == {
        "table1": 10 * 14,
        "table2": 10 * 7,
        "table3": 6 * 5,
        "table4": 6 * 4,
        "table5": 5 * 4,
        "table6": 4 * 4,
        "table7": 6 * 3,
        "table8": 6 * 4,
        "table9": 9 * 6,
        "table10": 4 * 15,
        "table11": 4 * 15,
    }


@pytest.mark.parametrize("name", paper_tables())
def test_every_number_has_its_cell_in_our_table(name):
    cells = EXPERIMENTS[name].cells(ExperimentSetup(find_scale("paper")))
    assert [(cell.block, cell.row, cell.column) for cell in cells] == list(paper_tables()[name].numbers)


@pytest.mark.parametrize(("name", "tails"), [("table1", SKEWS), ("table2", ((),))])
def test_averages_are_means_of_the_six(name, tails):
    for row in rows(name):
        for tail in tails:
            mean = sum(value(name, row, (dataset, *tail)) for dataset in SIX) / 6
            assert abs(mean - value(name, row, ("Average", *tail))) <= Decimal("0.005"), (row, tail)


def test_gains_are_differences_except_a_listed_one():
    wrong = {}
    for row, column in ((row, column) for row in rows("table3") for column in columns("table3")):
        number = paper_tables()["table3"].find(row, column)
        if number.gain is not None:
            gain = value("table3", row, column) - value("table3", (row[0], "FPL"), column)
            if gain != Decimal(str(number.gain)).quantize(CENT):
                wrong[row[0], column[0]] = gain
    assert wrong == {("pFedPrompt", "CUB"): Decimal("4.29")}
    assert "4.29" in paper_tables()["table3"].find(("pFedPrompt", "CoPL"), ("CUB",)).doubt


@pytest.mark.parametrize("name", ["table1", "table2", "table4", "table8", "table9"])
def test_bold_is_the_best_of_a_column_and_underlined_the_second(name):
    by_column = defaultdict(list)
    for (block, _, column), number in paper_tables()[name].numbers.items():
        by_column[block, column].append(number)
    underlined = any(number.mark == "second" for number in paper_tables()[name].numbers.values())
    for numbers in by_column.values():
        best, second, *_ = sorted({number.value for number in numbers}, reverse=True)
        assert all((number.mark == "best") == (number.value == best) for number in numbers)
        if underlined:
            assert all((number.mark == "second") == (number.value == second) for number in numbers)


@pytest.mark.parametrize("name", ["table10", "table11"])
def test_bold_is_the_best_of_a_sweep_except_a_listed_one(name):
    wrong = []
    for row in rows(name):
        numbers = [paper_tables()[name].find(row, column) for column in columns(name)]
        [bold] = [number for number in numbers if number.mark == "best"]
        if bold.value != max(number.value for number in numbers):
            wrong.append((row, bold))
    assert [row for row, _ in wrong] == ([("RESISC45",)] if name == "table11" else [])
    assert all(bold.doubt for _, bold in wrong)


@pytest.mark.parametrize("name", ["table10", "table11"])
def test_sweeps_pass_through_the_main_result(name):
    for (dataset,) in rows(name):
        main = value("table1", ("FedCoPL", "CoPL"), (dataset, "β = 0.1"))
        assert value(name, (dataset,), ("0.50",)) == main


def test_tables_repeat_the_main_results():
    for (dataset,) in columns("table5"):
        main = value("table1", ("FedCoPL", "CoPL"), (dataset, "β = 0.1"))
        assert value("table5", ("✓", "✓", "✓"), (dataset,)) == value("table6", ("-", "✓"), (dataset,)) == main
    for method in ("PromptFL", "pFedPrompt", "FedOPT"):
        for (dataset,) in columns("table3"):
            main = value("table1", (method, "FPL"), (dataset, "β = 0.1"))
            assert value("table3", (method, "FPL"), (dataset,)) == main


def test_two_rows_of_the_ablations_are_other_methods_digit_for_digit():
    for (dataset,) in columns("table5"):
        promptfl = value("table1", ("PromptFL", "FPL"), (dataset, "β = 0.1"))
        assert value("table5", ("-", "-", "-"), (dataset,)) == promptfl
        assert value("table6", ("✓", "✓"), (dataset,)) == value("table3", ("PromptFL", "CoPL"), (dataset,))
    doubled = [value("table6", row, ("CUB",)) for row in (("-", "-"), ("✓", "✓"))]
    assert doubled == [Decimal("49.08")] * 2


def test_the_rn50_table_repeats_digits_of_vit_b_16():
    equal, whole_points = set(), set()
    for row in rows("table8"):
        for column in (("DTD",), ("RESISC45",), ("UCF101",)):
            difference = value("table8", row, column) - value("table4", row, column)
            if difference == 0:
                equal.add((row[0], *column))
            elif difference % 1 == 0:
                whole_points.add((row[0], *column))
    assert equal == {("CLIP", "UCF101"), ("FedOPT", "RESISC45")}
    methods = ("PromptFL", "PromptProx", "pFedPrompt", "FedOPT", "FedCoPL")
    assert whole_points == {(method, "DTD") for method in methods}


def shares(images):
    """Return all accuracies that are possible with this number of test images, as printed."""
    return {(Decimal(100 * correct) / images).quantize(CENT) for correct in range(images + 1)}


def test_the_zero_shot_accuracy_of_dtd_belongs_to_the_official_split():
    printed = value("table1", ("CLIP", "-"), ("DTD", "β = 0.1"))
    assert printed in shares(1880)
    assert printed not in shares(1692)


def test_zero_shot_is_of_the_whole_test_set_except_listed_numbers():
    tested = {"DTD": 1880, "RESISC45": 25200, "CUB": 5794, "UCF101": 3783, "CIFAR10": 10000, "CIFAR100": 10000}
    zero_shot = [
        (name, column[0], number)
        for name in ("table1", "table2", "table4", "table8")
        for (_, row, column), number in paper_tables()[name].numbers.items()
        if row[0] == "CLIP" and column[0] in tested
    ]
    impossible = {
        (name, dataset): number
        for name, dataset, number in zero_shot
        if Decimal(str(number.value)).quantize(CENT) not in shares(tested[dataset])
    }
    assert set(impossible) == {("table1", "UCF101"), ("table2", "UCF101"), ("table8", "DTD")}
    assert all(number.doubt for number in impossible.values())
    assert len({number.value for name, dataset, number in zero_shot if (name, dataset) == ("table1", "DTD")}) == 1


def test_the_list_of_doubtful_numbers():
    doubtful = {
        (name, row, *column)
        for name, table in paper_tables().items()
        for (_, row, column), number in table.numbers.items()
        if number.doubt and name != "table8"
    }
    four = ("DTD", "RESISC45", "CUB", "UCF101")
    assert doubtful == {
        *(("table5", ("-", "-", "-"), dataset) for dataset in four),
        *(("table6", ("✓", "✓"), dataset) for dataset in four),
        ("table6", ("-", "-"), "CUB"),
        ("table1", ("CLIP", "-"), "UCF101", "β = 0.1"),
        ("table1", ("CLIP", "-"), "UCF101", "β = 0.05"),
        ("table2", ("CLIP", "-"), "UCF101"),
        ("table3", ("pFedPrompt", "CoPL"), "CUB"),
        ("table7", ("CUB", "Image classification"), "Training Size"),
        ("table7", ("DTD", "Texture recognition"), "Training Size"),
        ("table7", ("DTD", "Texture recognition"), "Testing Size"),
        ("table11", ("RESISC45",), "0.50"),
    }
    assert all(number.doubt for number in paper_tables()["table8"].numbers.values())
