"""Several runs on one page: numbers worked by hand."""

import itertools
import math
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from fedcopl.report.comparison import (
    ComparedRun,
    _differing,
    _grouped,
    _short_folders,
    render_comparison,
)
from fedcopl.report.curves import Spread, spread
from fedcopl.report.formatting import NOTHING, SPACE
from fedcopl.run.pseudo_labels import write_labels
from report.parsed_page import parse
from report.sample_results import outcome_of, sample_results, so_far

MINUS = "\N{MINUS SIGN}"
CLASSES = ("cat", "dog")


def run(folder, results):
    return ComparedRun(Path(folder), outcome_of(results))


def outcome(*, macro=0.8, zero_shot=0.7, name="demo", seed=1, up=1000, seconds=10.0, **settings):
    """A run whose last round is this good."""
    results = sample_results(clients=2, classes=CLASSES, rounds=2, every=1, name=name, seed=seed, settings=settings)
    first, last = results["rounds"]
    first["bytes_up"] = 0
    last |= {"macro": macro, "weighted": macro, "global": None, "bytes_up": up}
    results["zero_shot"] |= {"macro": zero_shot}
    return results | {"seconds": seconds}


def pair():
    return [
        run("runs/one", outcome(macro=0.80, name="one", up=2000)),
        run("runs/two", outcome(macro=0.85, name="two", up=1000, method="promptfl")),
    ]


def page(runs):
    return parse(render_comparison(runs))


def text_of(element):
    return element.text.replace(SPACE, " ")


def rows(table):
    return [[text_of(cell) for cell in row if cell.tag in ("td", "th")] for row in table.all("tr")]


def column(tree, name, section="result"):
    head, *body = rows(tree.one("section", id=section).one("table"))
    return [row[head.index(name)] for row in body]


def figures(tree):
    return {figure.one("h3").text: figure for figure in tree.one("section", id="curves").all("figure")}


def test_mean_and_deviation_by_hand():
    # 2, 4, 9: mean 5, squares 9 + 1 + 16 = 26, over n - 1 = 13
    assert spread([2, 4, 9]) == Spread(5.0, pytest.approx(math.sqrt(13)))
    assert spread([None, 3.0]) == Spread(3.0, None)
    assert spread([None, None]) is None


def test_the_unit_is_written_once_where_it_is_the_same():
    assert Spread(82.66, 0.61).format(lambda value: f"{value:.1f}{SPACE}%") == f"82.7 ± 0.6{SPACE}%"
    seconds = {75.0: f"1{SPACE}min 15{SPACE}s", 3.2: f"3.2{SPACE}s"}
    assert Spread(75.0, 3.2).format(seconds.get) == f"1{SPACE}min 15{SPACE}s ± 3.2{SPACE}s"
    assert Spread(7.25, 0.55).format(lambda value: f"{value:+.1f}") == "+7.2 ± 0.6"


def test_experiments_are_titled_by_method_and_labeler():
    named = [outcome(name="first"), outcome(name="mine", method="promptfl")]
    methods = ["PromptFL + FPL (as published)", "PromptFL + FPL + priors"]
    tree = page([run(str(n), one | {"method": what}) for n, (one, what) in enumerate(zip(named, methods, strict=True))])
    assert column(tree, "experiment") == methods
    assert "method" not in rows(tree.one("section", id="result").one("table"))[0]


def test_experiments_of_one_method_have_settings_or_names_in_their_titles():
    few, many = outcome() | {"method": "FedCoPL"}, outcome(data={"clients": 9}) | {"method": "FedCoPL"}
    runs = [run("a", few), run("b", many)]
    assert [group.label for group in _grouped(runs)] == ["FedCoPL, clients 2", "FedCoPL, clients 9"]
    long = {"labels": {"cpl_alpha": 0.123456789, "cpl_beta": 0.123456789, "per_class": 17, "capacity": "grow"}}
    long_run = outcome(name="second", **long) | {"method": "FedCoPL"}
    assert [group.label for group in _grouped([runs[0], run("b", long_run)])] == ["FedCoPL, demo", "FedCoPL, second"]
    unnamed = [run("x/run", few), run("y/run", outcome(**long) | {"method": "FedCoPL"})]
    assert [group.label for group in _grouped(unnamed)] == ["x/run", "y/run"]
    assert column(page(unnamed), "method") == ["FedCoPL", "FedCoPL"]


def test_a_title_has_only_settings_that_differ_within_its_method():
    one, two = (outcome(rounds=2, data={"clients": n}) | {"method": "FedCoPL"} for n in (2, 9))
    other = outcome(rounds=1) | {"method": "CLIP + priors"}
    runs = [run("a", one), run("b", two), run("c", other)]
    labels = ["FedCoPL, clients 2", "FedCoPL, clients 9", "CLIP + priors"]
    assert [group.label for group in _grouped(runs)] == labels


def test_a_long_title_names_each_method_once():
    runs = [run(str(n), outcome(data={"clients": n}) | {"method": "FedCoPL"}) for n in range(2, 9)]
    assert text_of(page(runs).one("h1")) == "FedCoPL"


def test_the_results_as_latex():
    code = re.search(r"<code>(\\begin.*?)</code>", render_comparison(pair()), re.DOTALL)
    lines = unescape(code[1]).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrrrrr}"  # global was not measured
    assert lines[2].startswith(r" & macro & weighted & zero-shot macro & gain & ")
    assert lines[4].startswith(r"fedcopl & 80.0~\% & 80.0~\% & 70.0~\% & +10.0 & ")
    assert lines[5].startswith(r"promptfl & \textbf{85.0~\%} & ")
    assert lines[-1] == r"\end{tabular}"


def test_runs_show_problems_and_epsilon():
    one, two = outcome(), outcome(method="fedvpt")
    one["rounds"][0]["dropped"] = {"client-1": "late"}
    one["rounds"][1]["holdout"] = {"trainings_rolled_back": 2.0}
    one["privacy"] = two["privacy"] = {"secure_aggregation": False, "epsilon": 1.5, "delta": 1e-5}
    tree = page([run("a", one), run("b", two)])
    assert column(tree, "replies not used", "runs") == ["1", "0"]
    assert column(tree, "rounds rolled back", "runs") == ["1", "0"]
    assert column(tree, "epsilon", "runs") == ["1.5", "1.5"]
    assert "at most 3, their sum" in text_of(tree.one("section", id="runs"))


def test_only_settings_that_differ_are_named():
    runs = [
        run("a", outcome(name="x", seed=1)),
        run("b", outcome(name="y", seed=2, method="fedotp", options={"mass": 0.5})),
    ]
    assert _differing(runs) == ["method", "options.mass"]
    assert _differing(runs[:1]) == []


def test_runs_that_differ_only_by_seed_are_one_experiment():
    runs = [
        run("a/1", outcome(macro=0.80, seed=1)),
        run("b/1", outcome(macro=0.90, seed=1, method="fedvpt")),
        run("a/2", outcome(macro=0.84, seed=2, name="other-name")),
    ]
    one, two = _grouped(runs)
    assert [(group.label, group.seeds) for group in (one, two)] == [("fedcopl", "1, 2"), ("fedvpt", "1")]
    # 80 and 84: mean 82, deviation sqrt((4 + 4) / 1) = 2.83
    assert one.numbers["macro"] == Spread(pytest.approx(82.0), pytest.approx(math.sqrt(8)))
    tree = page(runs)
    assert column(tree, "macro") == ["82.0 ± 2.8 %", "90.0 % (best)"]
    assert column(tree, "gain") == ["+12.0 ± 2.8", "+20.0 (best)"]
    assert column(tree, "seeds", "experiments") == ["1, 2", "1"]
    assert text_of(tree.one("p", class_="lead")).startswith("3 runs of 2 experiments; runs that differ only by")


def test_a_duplicate_run_is_not_averaged():
    runs = [
        run("a/1", outcome(macro=0.80, seed=1)),
        run("again", outcome(macro=0.80, seed=1, name="copy")),
        run("a/2", outcome(macro=0.84, seed=2)),
        run("b/1", outcome(macro=0.90, seed=1, method="fedvpt")),
    ]
    tree = page(runs)
    assert column(tree, "macro") == ["82.0 ± 2.8 %", "90.0 % (best)"]  # not 81.3 ± 2.3 of three
    assert column(tree, "seeds", "experiments") == ["1, 2", "1"]
    assert "Left out: again repeats settings and seed of a/1." in text_of(tree.one("p", class_="unfinished"))


def test_an_unfinished_run_is_neither_averaged_with_a_finished_one_nor_ranked():
    whole = outcome(macro=0.80)
    half = so_far(outcome(macro=0.99, seed=2), 1)
    half["rounds"][0]["macro"] = 0.95
    tree = page([run("whole", whole), run("half", half), run("other", outcome(macro=0.7, method="fedvpt"))])
    assert column(tree, "macro") == ["80.0 % (best)", "95.0 %", "70.0 %"]
    assert column(tree, "rounds done", "experiments") == ["2", "1 of 2, not finished", "2"]
    assert "Not finished: half (round 1 of 2)" in text_of(tree.one("p", class_="unfinished"))


def test_rounds_of_runs_that_stopped_early_are_those_that_were_done():
    runs = [so_far(outcome(seed=seed, rounds=4), done) for seed, done in ((1, 1), (2, 2))]
    for one in runs:
        one["rounds"][-1]["converged"] = True
    tree = page([run(str(n), one) for n, one in enumerate(runs)])
    assert column(tree, "rounds done", "experiments") == ["1, 2"]
    assert column(tree, "rounds", "runs") == ["1", "2"]


def test_best_and_second_best():
    accuracies = {"a": 0.70, "b": 0.802, "c": 0.8024, "d": 0.75}
    runs = [
        run(name, outcome(macro=value, name=name, labeler="copl", rounds=2, data={"clients": 2, "beta": value}))
        for name, value in accuracies.items()
    ]
    # 80.20 and 80.24 both read 80.2: two firsts, and 75.0 is second
    assert column(page(runs), "macro") == ["70.0 %", "80.2 % (best)", "80.2 % (best)", "75.0 % (second best)"]


def test_of_two_experiments_only_the_better_is_marked_and_lower_costs_are_better():
    tree = page(pair())
    assert column(tree, "macro") == ["80.0 %", "85.0 % (best)"]
    assert column(tree, "sent up") == ["2.0 kB", "1.0 kB (best)"]
    assert column(tree, "time") == ["10 s", "10 s"]  # the same: nobody is best
    assert "global" not in rows(tree.one("section", id="result").one("table"))[0]  # nobody measured it
    assert column(tree, "zero-shot macro") == ["70.0 %", "70.0 %"]


def test_supervised_runs_are_not_ranked():
    runs = [
        *pair(),
        run("truth", outcome(macro=0.99, name="truth", method="central", options={"labels": "truth"})),
    ]
    tree = page(runs)
    assert column(tree, "macro") == ["80.0 %", "85.0 % (best)", "99.0 %"]
    assert "Supervised runs (central, labels truth) are not ranked." in text_of(
        tree.one("section", id="result").all("p")[0]
    )


def test_runs_with_other_classes_are_not_ranked():
    other = sample_results(clients=2, classes=("x", "y", "z"), rounds=2, name="letters")
    tree = page([pair()[0], run("letters", other)])
    assert not re.search("best", " ".join(column(tree, "macro")))
    assert "have different classes" in text_of(tree.one("section", id="result"))
    assert not tree.all("section", id="classes")


def test_folders_have_the_shortest_distinct_names():
    assert _short_folders([Path("/a/b/one"), Path("/a/b/two")]) == ["one", "two"]
    assert _short_folders([Path("/a/x/run"), Path("/a/y/run"), Path("/a/y/other")]) == ["x/run", "y/run", "y/other"]
    assert _short_folders([Path("/same"), Path("/same")]) == ["same", "same"]


def test_differing_settings_are_a_table():
    head, *body = rows(page(pair()).one("section", id="experiments").one("table"))
    assert head == ["experiment", "method", "rounds done", "runs", "seeds"]
    assert body == [["fedcopl", "fedcopl", "2", "1", "1"], ["promptfl", "promptfl", "2", "1", "1"]]


def test_the_same_settings_are_listed_once_and_without_those_that_differ():
    section = page(pair()).one("section", id="settings")
    names = [dt.text for dt in section.one("div", class_="settings").all("dt")]
    assert "rounds" in names
    assert "beta" in names
    assert not {"method", "name", "seed"} & set(names)


def test_every_chart_has_a_line_for_each_experiment_and_a_table():
    drawn = figures(page(pair()))
    assert list(drawn) == [
        "Accuracy, macro",
        "Accuracy, weighted",
        "Accuracy, global",
        "Training loss",
        "Pseudo-label accuracy",
        "Drift diversity, visual",
        "Cosine distance, visual",
        "Drift diversity, text",
        "Cosine distance, text",
        "Bytes sent up per round",
        "Time per round",
    ]
    for title, figure in drawn.items():
        assert [line.attributes["class"] for line in figure.all("polyline")] == ["line s2", "line s1"], title
        assert rows(figure.one("table"))[0] == ["round", "fedcopl", "promptfl"]
    assert rows(drawn["Accuracy, macro"].one("table"))[2] == ["2", "80.0 %", "85.0 %"]
    assert "zero-shot macro, 70.0 %" in text_of(drawn["Accuracy, macro"])


def test_a_mean_has_a_band_and_a_deviation():
    runs = [
        run("1", outcome(macro=0.80, seed=1)),
        run("2", outcome(macro=0.84, seed=2)),
        run("x", outcome(method="fedvpt")),
    ]
    drawn = figures(page(runs))["Accuracy, macro"]
    (band,) = drawn.all("polygon")
    assert len(band.attributes["points"].split()) == 4  # two rounds, there and back
    assert rows(drawn.one("table"))[2] == ["2", "82.0 % ± 2.8 %", "80.0 %"]


def test_runs_with_different_rounds_and_refreshes():
    short, long = (sample_results(clients=2, classes=CLASSES, rounds=n, every=n, name=f"r{n}") for n in (2, 5))
    drawn = figures(page([run("a", short), run("b", long)]))
    two, one = drawn["Training loss"].all("polyline")
    assert (len(one.attributes["points"].split()), len(two.attributes["points"].split())) == (2, 5)
    assert rows(drawn["Training loss"].one("table"))[5][:2] == ["5", NOTHING]


def test_more_experiments_than_a_chart_can_hold():
    runs = [
        run(f"{n}", outcome(macro=0.5 + n / 100, name=f"run-{n}", data={"clients": 2, "beta": 1 + n}))
        for n in range(11)
    ]
    tree = page(runs)
    assert len(column(tree, "macro")) == 11
    drawn = figures(tree)["Accuracy, macro"]
    assert rows(drawn.one("table"))[0] == ["round", *(f"beta {1.0 + n}" for n in range(3, 11))]
    assert "The 8 experiments with the highest accuracy; 3 others are in the tables only." in text_of(
        tree.one("section", id="curves")
    )


def test_recall_side_by_side():
    one, two = outcome(name="one"), outcome(name="two", method="fedvpt")
    for results, recall in ((one, [0.5, 0.9]), (two, [1.0, None])):
        results["zero_shot"]["recall"] = [0.25, 0.0]
        results["rounds"][-1]["recall"] = recall
    table = page([run("a", one), run("b", two)]).one("section", id="classes").one("table")
    assert rows(table) == [
        ["", "zero-shot", "fedcopl", "fedvpt"],
        ["cat", "25.0 %", "50.0 %", "100.0 %"],
        ["dog", "0.0 %", "90.0 %", NOTHING],
    ]
    looks = [cell.attributes["class"] for cell in table.one("tbody").all("td")]
    assert looks == ["h3", "h5", "h9", "h1", "h8", "h0"]  # 1 + 8 times the share, rounded


def test_recall_of_runs_that_began_with_other_models():
    one, two = outcome(name="one"), outcome(name="two", method="fedvpt")
    two["zero_shot"]["recall"] = [0.1, 0.2]
    table = page([run("a", one), run("b", two)]).one("section", id="classes").one("table")
    assert rows(table)[0] == ["", "zero-shot, fedcopl", "zero-shot, fedvpt", "fedcopl", "fedvpt"]


def test_every_run_has_its_row():
    runs = [run("runs/s1", outcome(seed=1)), run("runs/s2", outcome(seed=2, macro=0.6))]
    tree = page(runs)
    assert column(tree, "folder", "runs") == ["s1", "s2"]
    assert column(tree, "seed", "runs") == ["1", "2"]
    assert column(tree, "gain", "runs") == ["+10.0", f"{MINUS}10.0"]


def test_without_labels(tmp_path):
    runs = [run(tmp_path / name, sample_results(name=name, labelled=False)) for name in ("a", "b")]
    runs[1].outcome.settings["rounds"] = 11
    write_labels(tmp_path / "a", 0, {"site": np.log([[0.9, 0.1], [0.3, 0.7]])})
    tree = page(runs)
    assert "macro" not in rows(tree.one("section", id="result").one("table"))[0]
    assert column(tree, "mean confidence") == ["80.0 %", NOTHING]
    assert "Accuracy is not measured" in text_of(tree.one("section", id="result"))
    assert not tree.all("section", id="classes")
    assert "None" not in text_of(tree.one("body"))


def test_versions_that_differ_are_seen():
    one, two = outcome(name="one"), outcome(name="two", method="fedvpt")
    two["versions"] = {**two["versions"], "torch": "2.9.0"}
    versions = text_of(page([run("a", one), run("b", two)]).one("dl", class_="versions"))
    assert "torch 2.8.0 and 2.9.0" in versions
    assert versions.endswith("numpy 2.1.0")


def test_names_are_text_and_never_markup():
    nasty = "<script>alert(1)</script>"
    one, two = outcome(name="one"), outcome(name="two", method="fedvpt")
    for results in (one, two):
        results["classes"] = [nasty, "{{ 7 * 7 }}"]
        results["settings"]["data"]["path"] = nasty + results["name"]
        results["versions"]["torch"] = nasty
    one["method"], two["method"] = nasty, "other"
    html = render_comparison([run(f"a/{nasty}", one), run("b", two)])
    assert "<script" not in html.lower()
    tree = parse(html)
    assert tree.one("h1").text.startswith(nasty)
    assert rows(tree.one("section", id="classes").one("table"))[1][0] == nasty


def test_nothing_is_loaded_from_anywhere_and_references_lead_somewhere():
    tree = page(pair())
    links = [e.attributes[name] for e in tree for name in ("src", "href", "srcset", "data") if name in e.attributes]
    assert all(link.startswith(("#", "data:")) for link in links)
    ids = [e.attributes["id"] for e in tree if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} == {s.attributes["id"] for s in tree.all("section")}
    levels = [int(e.tag[1]) for e in tree if re.fullmatch("h[1-6]", e.tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
