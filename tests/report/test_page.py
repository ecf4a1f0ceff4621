import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedcopl.report.comparison import ComparedRun, render_comparison
from fedcopl.report.formatting import NOTHING
from fedcopl.report.gallery import ChosenImages, Example, as_plain, gallery
from fedcopl.report.label_free import ReviewedClient, _label_free_accuracy
from fedcopl.report.run_page import _render, write_report
from fedcopl.run.pseudo_labels import LastLabels
from fedcopl.run.record import read_outcome
from report.parsed_page import parse
from report.sample_results import (
    DIGITS,
    KINDS,
    of_sites,
    outcome_of,
    sample_outcome,
    sample_results,
    so_far,
    write_run,
)
from run.test_record import GARBAGE, paths, put

NASTY = "<script>alert(1)</script>"


def example(**changes):
    usual = {
        "image": "data:image/png;base64,AAAA",
        "width": 8,
        "height": 8,
        "label": 3,
        "pseudo": "three",
        "confidence": 0.912,
        "truth": "three",
        "right": True,
        "client": "client-1",
        "index": 17,
    }
    return Example(**usual | changes)


def page(results, examples=()):
    return parse(_render(outcome_of(results), list(examples)))


def percent(share):
    return f"{100 * share:.1f} %"


def words_of(element):
    return element.text.replace("\N{NO-BREAK SPACE}", " ")


def rows(table):
    return [[words_of(cell) for cell in row if cell.tag in ("td", "th")] for row in table.all("tr")]


def heat_maps(tree):
    return {figure.one("h3").text: figure.one("table") for figure in tree.all("figure", class_="heat-map")}


def tiles(tree):
    return {
        words_of(tile.all("h3")[0] if tile.all("h3") else tile.one("h4")): words_of(tile)
        for tile in tree.all("div", class_="tile")
    }


def test_the_report_of_a_continued_run_names_the_previous_run():
    page = _render(sample_outcome(settings={"previous_run": "may 00ff"}), [])
    assert "Continues the run <b>may 00ff</b>" in page and "--from FOLDER-OF-THAT-RUN" in page
    assert "continues" not in _render(sample_outcome(), [])


def test_a_report_is_written_to_the_run_folder_or_the_given_file(tmp_path):
    folder = write_run(tmp_path / "run", sample_results())
    (folder / "examples.json").write_text(json.dumps(as_plain([example()])))
    assert write_report(folder) == folder / "report.html"
    assert (folder / "report.html").read_text(encoding="utf-8") == _render(sample_outcome(), [example()])
    assert write_report(folder, tmp_path / "mine.html") == tmp_path / "mine.html"
    assert (tmp_path / "mine.html").read_bytes() == (folder / "report.html").read_bytes()


def test_a_name_of_invalid_utf_8_is_escaped(tmp_path):
    folder = write_run(tmp_path / "run", sample_results(name="caf\udce9"))
    assert "caf\\udce9" in write_report(folder).read_text(encoding="utf-8")


def test_a_report_of_the_rounds_so_far(tmp_path):
    folder = write_run(tmp_path / "run", so_far(sample_results(), 3), "progress.json")
    assert "Not finished" in write_report(folder).read_text(encoding="utf-8")


SMALL = sample_results(clients=2, classes=("cat", "dog"), rounds=2, every=1)


@given(st.sampled_from(list(paths(SMALL))), st.sampled_from(GARBAGE))
def test_damaged_results_are_rendered_or_refused(path, value):
    try:
        outcome = read_outcome(put(SMALL, path, value))
    except ValueError:
        return
    if not (outcome.rounds and outcome.classes and outcome.settings):
        return  # refused by `read_so_far`
    assert "</html>" in _render(outcome, [])
    pair = [ComparedRun(Path("a"), outcome_of(SMALL)), ComparedRun(Path("b"), outcome)]
    assert "</html>" in render_comparison(pair)


def test_the_same_results_give_the_same_page():
    assert _render(sample_outcome(), [example()]) == _render(sample_outcome(), [example()])


def test_names_and_language():
    tree = page(sample_results(name="my-run"))
    assert tree.one("html").attributes["lang"] == "en"
    assert tree.one("h1").text == "my-run"
    assert tree.one("head").one("title").text == "my-run · FedCoPL report"
    lead = words_of(tree.one("p", class_="lead"))
    assert lead.startswith("5 clients trained a classifier of 10 classes on 1,420 images without labels")


@pytest.mark.parametrize("kind", KINDS)
def test_the_accuracy_of_the_priors_is_next_to_the_result(kind):
    results = sample_results()
    assert "priors" not in tiles(page(results))[f"Accuracy, {kind}"]
    results["rounds"][0]["untrained"] = {"macro": 0.701, "weighted": 0.702, "global": 0.703}
    shown = page(results)
    share = {"macro": "70.1 %", "weighted": "70.2 %", "global": "70.3 %"}[kind]
    assert f"priors without training: {share}" in tiles(shown)[f"Accuracy, {kind}"]
    assert len(charts(shown)["Accuracy"].all("line", class_="level")) == 2
    assert "priors without training, macro, 70.1 %" in words_of(shown)


@pytest.mark.parametrize("kind", KINDS)
def test_headline_numbers(kind):
    results = sample_results()
    final, zero_shot, best = (results[key] for key in ("final", "zero_shot", "best"))
    assert final["round"] != best["round"]  # or the test would not tell them apart
    tile = tiles(page(results))[f"Accuracy, {kind}"]
    gain = 100 * (final[kind] - zero_shot[kind])
    assert f"{percent(final[kind])} last round ({final['round'] + 1})" in tile
    assert f"+{gain:.1f} points against {percent(zero_shot[kind])} zero-shot" in tile
    assert re.search(rf"best round \({best['round'] + 1}[^)]*\): {percent(best[kind])}", tile)


def test_a_loss_is_shown_as_a_loss():
    results = sample_results()
    results["rounds"][-1]["macro"] = results["zero_shot"]["macro"] - 0.021
    tree = page(results)
    assert "\N{MINUS SIGN}2.1 points against" in tiles(tree)["Accuracy, macro"]
    assert tree.all("p", class_="versus")[0].one("b").attributes["class"] == "bad"


def test_traffic_time_and_images_used():
    results = sample_results() | {"seconds": 205.3}
    results["refreshes"][-1]["images"] = 711
    assert sum(record["bytes_up"] for record in results["rounds"]) == 1_920_000
    assert sum(record["bytes_down"] for record in results["rounds"]) == 3_844_000
    text = words_of(page(results).one("div", id="cost"))
    assert "1.9 MB up and 3.8 MB down, all clients together" in text
    assert "3 min 25 s for 10 rounds; 711 images used of 1,420." in text


def test_the_result_starts_with_three_bars_and_the_table_of_clients():
    results = sample_results(clients=2)
    results["rounds"][0]["untrained"] = {"macro": 0.701, "clients": [0.6, 0.802]}
    section = page(results).one("section", id="result")
    bars = [words_of(bar) for bar in section.one("ul", class_="accuracies").all("li")]
    final, zero_shot = (percent(results[key]["macro"]) for key in ("final", "zero_shot"))
    assert bars == [f"zero-shot {zero_shot}", "priors 70.1 %", f"trained {final}"]
    widths = [float(rect.attributes["width"]) for rect in section.one("ul").all("rect", class_="fill")]
    assert widths[1] == 70.1  # on an axis from 0 to 100
    head, first, second = rows(section.one("table"))
    assert head[1:4] == ["zero-shot", "priors", "trained"]
    assert (first[2], second[2]) == ("60.0 %", "80.2 %")


@pytest.mark.parametrize(("untrained", "warned"), [(0.99, True), (0.1, False)])
def test_training_that_lost_accuracy_is_named(untrained, warned):
    results = sample_results()
    results["rounds"][0]["untrained"] = {"macro": untrained}
    assert ("Training lost accuracy here" in page(results).one("section", id="result").text) == warned


@pytest.mark.parametrize(("method", "names"), [("zeroshot", ["zero-shot"]), ("priors", ["zero-shot", "priors"])])
def test_bars_of_what_does_not_train(method, names):
    results = sample_results(settings={"method": method}) | {"method": method, "trains": False}
    section = page(results).one("section", id="result")
    assert [bar.one("span").text for bar in section.one("ul", class_="accuracies").all("li")] == names


def charts(tree):
    return {
        figure.one("h3").text: figure.one("svg", class_="chart")
        for figure in tree.all("figure")
        if figure.all("polyline")
    }


def points(chart):
    """How many points each line has, by its look."""
    return {line.attributes["class"]: len(line.attributes["points"].split()) for line in chart.all("polyline")}


def test_every_line_has_a_point_per_round():
    drawn = charts(page(sample_results(rounds=12)))
    assert {title: points(chart) for title, chart in drawn.items()} == {
        "Accuracy": {"line macro": 12, "line weighted": 12, "line global": 12},
        "Training loss": {"line macro": 12},
        "Effect of refreshes": {"line s1": 3, "line s2": 2},
        "Pseudo-label accuracy": {"line macro": 3},
        "Drift diversity": {"line s1": 12, "line s2": 12},
        "Cosine distance": {"line s1": 12, "line s2": 12},
        "Bytes per round": {"line macro": 12, "line weighted": 12},
        "Time per round": {"line macro": 12},
    }
    accuracy, loss = drawn["Accuracy"], drawn["Training loss"]
    assert len(accuracy.all("line", class_="refresh")) == len(loss.all("line", class_="refresh")) == 3
    assert len(accuracy.all("line", class_="level")) == 1
    assert not loss.all("line", class_="level")


def test_hovering_over_a_round_shows_its_numbers():
    results = sample_results()
    drawn = charts(page(results))
    accuracy, loss, time = drawn["Accuracy"], drawn["Training loss"], drawn["Time per round"]
    record = results["rounds"][5]
    expected = " ".join(f"{kind} {percent(record[kind])}" for kind in KINDS)
    assert words_of(accuracy.all("title")[5]) == f"round 6 {expected} pseudo labels refreshed"
    assert words_of(loss.all("title")[4]) == f"round 5 loss {results['rounds'][4]['loss']:.3f}"
    assert words_of(time.all("title")[4]) == "round 5 time 4.1 s"  # each round, not the sum


def test_rounds_that_were_not_evaluated_have_no_point():
    results = sample_results(rounds=10)
    for record in results["rounds"]:
        if record["round"] % 3:
            record |= dict.fromkeys(KINDS) | {"clients": []}
    drawn = charts(page(results))
    assert points(drawn["Accuracy"]) == {"line macro": 4, "line weighted": 4, "line global": 4}
    assert points(drawn["Training loss"]) == {"line macro": 10}
    assert len(drawn["Accuracy"].all("rect", class_="strip")) == 10


def test_without_the_global_accuracy():
    results = sample_results()
    for record in (results["zero_shot"], *results["rounds"]):
        record["global"] = None
    tree = page(results)
    assert "not measured" in tiles(tree)["Accuracy, global"]
    assert percent(results["final"]["macro"]) in tiles(tree)["Accuracy, macro"]
    assert set(points(charts(tree)["Accuracy"])) == {"line macro", "line weighted"}


def test_all_rounds_as_a_table():
    results = sample_results()
    table = rows(page(results).one("div", id="rounds").one("table"))
    assert len(table) == 1 + len(results["rounds"])
    record = results["rounds"][5]
    accuracies = [percent(record[kind]) for kind in KINDS]
    assert table[6] == [
        "6 (refresh)",
        *accuracies,
        f"{record['loss']:.3f}",
        "5",
        "595",
        "192.0 kB",
        "384.4 kB",
        "4.1 s",
    ]


def test_refresh_by_refresh():
    results = sample_results()
    table = rows(page(results).one("div", id="labels").one("table"))
    expected = [
        [
            str(refresh["round"] + 1),
            str(sum(map(sum, refresh["estimated"]))),
            str(sum(map(sum, refresh["allocated"]))),
            str(refresh["images"]),
            percent(refresh["pseudo_label_accuracy"]),
            f"{refresh['distribution_similarity']:.2f}",
        ]
        for refresh in results["refreshes"]
    ]
    assert table[1:] == expected


def test_heat_maps_hold_the_numbers_of_the_last_refresh():
    results = sample_results()
    shown, last = heat_maps(page(results)), results["refreshes"][-1]
    given = {key.capitalize(): last[key] for key in ("estimated", "allocated", "selected")}
    given["True"] = [client["true_counts"] for client in results["clients"]]
    assert list(shown) == ["True", "Estimated", "Allocated", "Selected", "Change by the allocation"]
    for title, counts in given.items():
        head, *body, total = rows(shown[title])
        assert head == ["", *DIGITS]
        assert body == [[f"client-{k}", *map(str, row)] for k, row in enumerate(counts)]
        assert total == ["all clients", *map(str, np.sum(counts, axis=0))]


def with_priors(**options):
    """Two clients of 30 and 20 images, and their estimated class priors."""
    results = sample_results(clients=2, classes=("cat", "dog"), rounds=2, every=1, **options)
    for client, train, true in zip(results["clients"], (30, 20), ([24, 6], [2, 18]), strict=True):
        client |= {"train": train} | ({"true_counts": true} if client["true_counts"] else {})
    results["refreshes"][0]["class_prior"] = [[0.5, 0.5], []]
    results["refreshes"][1]["class_prior"] = [[0.7, 0.3], [0.2, 0.8]]
    return results


def test_estimated_and_true_class_priors():
    tree = page(with_priors()).one("section", id="priors")
    shown = {figure.one("h3").text: rows(figure.one("table")) for figure in tree.all("figure", class_="heat-map")}
    assert shown == {
        "Estimated class prior": [
            ["", "cat", "dog"],
            ["client-0", "70", "30"],
            ["client-1", "20", "80"],
            ["all clients", "50", "50"],  # (30 * 0.7 + 20 * 0.2) / 50
        ],
        "True class prior": [
            ["", "cat", "dog"],
            ["client-0", "80", "20"],
            ["client-1", "10", "90"],
            ["all clients", "52", "48"],  # 26 of 50
        ],
    }
    # (0.7 + 0.2 + 0.1 + 0.8) / 2
    assert "Estimated and true prior overlap by 90.0 % (mean over the clients)." in words_of(tree.all("p")[0])


def test_a_client_without_a_prior_and_a_run_without_labels():
    results = with_priors(labelled=False)
    results["refreshes"][1]["class_prior"][0] = []
    tree = page(results).one("section", id="priors")
    assert [figure.one("h3").text for figure in tree.all("figure")] == ["Estimated class prior"]
    assert rows(tree.one("table"))[1:] == [
        ["client-0", "not estimated"],
        ["client-1", "20", "80"],
        ["all clients", "20", "80"],
    ]
    assert "overlap" not in words_of(tree.all("p")[0])


def test_without_priors_there_is_no_such_section():
    assert not page(sample_results()).all("section", id="priors")


def test_the_change_is_allocated_minus_estimated():
    results = sample_results(clients=2, classes=("much", "little"), rounds=1)
    results["refreshes"][-1] |= {"estimated": [[20, 1], [9, 4]], "allocated": [[10, 5], [9, 10]]}
    shown = heat_maps(page(results))["Change by the allocation"]
    assert rows(shown)[1:] == [
        ["client-0", "\N{MINUS SIGN}10", "+4"],
        ["client-1", "0", "+6"],
        ["all clients", "\N{MINUS SIGN}10", "+10"],
    ]
    looks = [cell.attributes["class"] for cell in shown.one("tbody").all("td")]
    assert looks == ["less5", "more4", "more0", "more4"]  # 5 sqrt(4/10) and 5 sqrt(6/10), rounded up


def test_shades_grow_with_the_number_over_all_heat_maps():
    maps = heat_maps(page(sample_results()))
    del maps["Change by the allocation"]  # it has shades of its own
    cells = [cell for table in maps.values() for cell in table.one("tbody").all("td")]
    pairs = sorted((int(cell.text), int(cell.attributes["class"][1:])) for cell in cells)
    shades = [shade for _, shade in pairs]
    assert shades == sorted(shades)
    assert all((number == 0) == (shade == 0) for number, shade in pairs)
    assert shades[-1] == 9


def test_a_client_without_a_reply_has_no_counts():
    results = sample_results()
    for key in ("estimated", "allocated", "selected"):
        results["refreshes"][-1][key][2] = []
    tree = page(results)
    _, _, _, third, *_, total = rows(heat_maps(tree)["Allocated"])
    assert third == ["client-2", "no reply"]
    given = [row for row in results["refreshes"][-1]["allocated"] if row]
    assert total[1:] == [str(number) for number in np.sum(given, axis=0)]
    assert rows(tree.one("div", id="balance").all("table")[1])[3] == ["client-2", "0", "0", "0"]


def test_images_per_class_and_per_client():
    results = sample_results(clients=2, classes=("much", "little", "even"), rounds=1)
    results["refreshes"][-1] |= {
        "estimated": [[20, 1, 6], [10, 2, 6]],
        "allocated": [[10, 5, 8], [5, 10, 7]],
        "selected": [[10, 4, 8], [5, 3, 7]],
        "images": 37,
    }
    tree = page(results).one("div", id="balance")
    by_class, by_client = (rows(table)[1:] for table in tree.all("table")[:2])
    assert [row[:1] + row[2:] for row in by_class] == [
        ["much", "30", "15", "15"],
        ["little", "3", "15", "7"],
        ["even", "12", "15", "15"],
    ]
    assert by_client == [["client-0", "27", "23", "22"], ["client-1", "18", "22", "15"]]
    titles = [words_of(group.one("title")) for group in tree.all("g", class_="group")]
    assert titles[1] == "little estimated 3 allocated 15 selected 7"
    assert "equal share" in tree.one("ul", class_="keys").text


def test_without_global_allocation_there_is_no_change():
    results = sample_results()
    results["settings"]["labels"]["global_allocation"] = False
    tree = page(results)
    assert "Global allocation is switched off" in tree.one("div", id="balance").text
    assert "balances" not in tree.one("p", class_="lead").text
    assert "Change by the allocation" not in heat_maps(tree)
    assert "equal share" not in tree.one("div", id="balance").text


def test_client_table():
    results = sample_results()
    section = page(results).one("section", id="result")
    for k, row in enumerate(rows(section.one("table"))[1:]):
        client = results["clients"][k]
        gain = 100 * (client["final"] - client["zero_shot"])
        accuracies = [percent(client["zero_shot"]), percent(client["final"])]
        assert row == [
            client["name"],
            *accuracies,
            f"{gain:+.1f}",
            str(client["train"]),
            str(client["test"]),
        ]
    assert "5 clients are better, 0 worse, 0 equal" in words_of(section)


def test_a_client_without_test_images():
    results = sample_results()
    results["clients"][1] |= {"test": 0, "zero_shot": None, "final": None}
    section = page(results).one("section", id="result")
    assert rows(section.one("table"))[2][1:] == [NOTHING, NOTHING, NOTHING, str(results["clients"][1]["train"]), "0"]
    assert "4 clients are better, 0 worse, 0 equal" in words_of(section)


def test_recall_of_each_class():
    results = sample_results(classes=("cat", "dog", "cow"), rounds=2)
    results["zero_shot"]["recall"] = [0.5, 0.8, None]
    results["rounds"][-1]["recall"] = [0.75, 0.7, None]
    section = page(results).one("section", id="classes")
    assert rows(section.one("table"))[1:] == [
        ["cat", "50.0 %", "75.0 %", "+25.0"],
        ["dog", "80.0 %", "70.0 %", "\N{MINUS SIGN}10.0"],
        ["cow", NOTHING, NOTHING, NOTHING],
    ]
    bars = [len(group.all("rect", class_="bar")) for group in section.all("g", class_="group")]
    assert bars == [2, 2, 0]
    assert words_of(section.all("title")[0]) == "cat zero-shot 50.0 % last round 75.0 %"


def test_recall_without_that_of_zero_shot():
    results = sample_results(classes=("cat", "dog"), rounds=1)
    del results["zero_shot"]["recall"]
    section = page(results).one("section", id="classes")
    assert [row[1::2] for row in rows(section.one("table"))[1:]] == [[NOTHING, NOTHING]] * 2
    assert [key.text for key in section.one("ul", class_="keys").all("li")] == ["last round"]


@pytest.mark.parametrize(
    ("settings", "title"),
    [({}, "Pseudo labels by refresh"), ({"method": "central", "options": {"labels": "truth"}}, "Labels")],
)
def test_true_labels_are_not_called_pseudo_labels(settings, title):
    assert page(sample_results(settings=settings)).one("div", id="labels").all("h3")[0].text == title


def test_drift_of_everything_that_is_trained():
    results = sample_results()
    results["rounds"][0]["drift"] = {"visual": {"diversity": 0.4, "cosine": 0.1}}  # no text prompt was there before
    results["rounds"][1]["drift"]["text"]["diversity"] = None  # updates that cancel out
    section = page(results).one("div", id="drift")
    diversity, cosine = (rows(table) for table in section.all("table"))
    assert diversity[0] == cosine[0] == ["round", "visual", "text"]
    assert diversity[1:3] == [["1", "0.40", NOTHING], ["2", "0.70", NOTHING]]
    assert diversity[10] == ["10", "1.50", "1,785"]  # 9 * 1.8 ** 9 = 1785.2
    assert cosine[1:3] == [["1", "0.10", NOTHING], ["2", "0.71", "1.02"]]


def test_without_measured_drift_the_section_is_left_out():
    results = sample_results()
    for record in results["rounds"]:
        record["drift"] = {}
    tree = page(results)
    assert not tree.all("div", id="drift")
    assert "Drift" not in [a.text for a in tree.all("a")]


def test_wall_time_by_kind_of_request():
    results = sample_results() | {"seconds": 50.0}  # ten rounds: labelling 1, training 29, evaluating 4, so 16 are left
    text = words_of(page(results).one("div", id="cost"))
    assert "labelling 1.0 s (2.0 %), training 29 s (58.0 %), evaluating 4.0 s (8.0 %), other 16 s (32.0 %)." in text
    results["rounds"][0]["seconds_of"]["adapt"] = 10.0
    text = words_of(page(results).one("div", id="cost"))
    assert "estimating priors 10 s (20.0 %), labelling" in text and "other 6.0 s (12.0 %)." in text


def test_no_step_takes_more_than_all_of_the_time():
    results = sample_results() | {"seconds": 20.0}  # of two workers that worked 34 s in 20 s: 1, 29 and 4 of 34
    text = words_of(page(results).one("div", id="cost"))
    assert "labelling 1.0 s (2.9 %), training 29 s (85.3 %), evaluating 4.0 s (11.8 %), other 0.0 s (0.0 %)." in text


def test_candidate_sets_have_coverage_and_mean_size():
    results = sample_results(settings={"labeler": "cpl"})
    for refresh in results["refreshes"]:
        refresh |= {"coverage": 0.9, "mean_set_size": 1.75}
    tree = page(results)
    table = rows(tree.one("div", id="labels").one("table"))
    assert table[0][-2:] == ["candidate sets with the true label", "candidates per image"]
    assert table[1][-2:] == ["90.0 %", "1.75"]
    assert set(points(charts(tree)["Pseudo-label accuracy"])) == {"line macro", "line weighted"}
    assert "Change by the allocation" not in heat_maps(tree)


def test_the_report_of_an_unfinished_run_is_marked():
    tree = page(so_far(sample_results(), 3))
    notice = words_of(tree.one("p", class_="unfinished"))
    assert notice.startswith("Not finished: 3 of 10 rounds are done.")
    assert "fedcopl run --out . --resume" in [code.text for code in tree.all("code")]
    assert "Example images are added when the run ends." in tree.one("section", id="examples").text
    assert not page(sample_results()).all("p", class_="unfinished")


def test_an_unfinished_run_shows_the_last_evaluated_round():
    results = so_far(sample_results(), 4)
    first = results["rounds"][0]
    for record in results["rounds"][1:]:
        record |= dict.fromkeys(KINDS) | {"clients": [], "recall": None}
    for client, accuracy in zip(results["clients"], first["clients"], strict=True):
        client["final"] = accuracy
    tree = page(results)
    assert f"{percent(first['macro'])} round (1)" in tiles(tree)["Accuracy, macro"]
    assert rows(tree.one("section", id="result").one("table"))[1][2] == percent(first["clients"][0])


def test_the_report_of_a_server_has_no_counts_of_sites():
    results = sample_results()
    tree = page(of_sites(results))
    shown = tiles(tree)
    assert percent(results["final"]["macro"]) in shown["Accuracy, macro"]
    assert "not measured" in shown["Accuracy, global"]
    assert not tree.all("div", id="labels") + tree.all("div", id="balance")
    known = {"Accuracy", "Training loss", "Effect of refreshes", "Bytes per round", "Time per round"}
    assert set(charts(tree)) == known
    assert "10 classes on their own images" in words_of(tree.one("p", class_="lead"))
    assert [row[0] for row in rows(tree.one("section", id="result").one("table"))[1:]] == [
        f"client-{number}" for number in range(5)
    ]
    assert "None" not in words_of(tree.one("body"))


def test_gallery_marks_right_and_wrong_in_words():
    wrong = example(label=5, pseudo="five", truth="nine", right=False, confidence=0.4)
    section = page(sample_results(), [example(), wrong]).one("section", id="examples")
    three, five = section.all("article")
    assert three.one("h3").text.startswith("three")
    assert words_of(three.one("li")) == "91.2 % right client-1"
    assert words_of(five.one("li")) == "40.0 % wrong: nine client-1"
    assert five.one("span", class_="bad").text == "wrong: nine"
    assert three.one("img").attributes["src"] == "data:image/png;base64,AAAA"
    assert three.one("img").attributes["class"] == "tiny"


def test_the_gallery_has_the_number_of_images_of_each_class():
    results = sample_results()
    chosen = sum(row[3] for row in results["refreshes"][-1]["selected"])
    (article,) = page(results, [example()]).all("article")
    assert words_of(article.one("h3")) == f"three 1 of {chosen}"


def test_classes_without_a_labelled_image_are_named():
    results = sample_results()
    for row in results["refreshes"][-1]["selected"]:
        row[4] = row[9] = 0
    assert "No image has the label four, nine." in page(results).one("section", id="examples").text


def test_many_classes_without_a_labelled_image_are_counted():
    results = sample_results(classes=tuple(f"class {n}" for n in range(30)))
    for row in results["refreshes"][-1]["selected"]:
        row[:] = [0] * 30
    assert "class 18, class 19 and 10 others." in words_of(page(results).one("section", id="examples"))


def test_settings_versions_seed_and_command():
    results = sample_results()
    section = page(results).one("section", id="repeat")
    assert section.one("code").text == "fedcopl run settings.toml"
    assert "the same seed (1)" in section.text
    names, values = [dt.text for dt in section.all("dt")], [dd.text for dd in section.all("dd")]
    shown = list(zip(names, values, strict=True))
    leaves = sum(len(value) if isinstance(value, dict) else 1 for value in results["settings"].values())
    assert len(shown) == leaves + len(results["versions"])
    assert {("rounds", "10"), ("source", '"digits"'), ("beta", "0.1"), ("entropy_filter", "true")} <= set(shown)
    assert ("torch", "2.8.0") in shown


def test_warnings_list_dropped_replies_and_rollbacks():
    assert not page(sample_results()).all("div", class_="warnings")
    results = sample_results()
    results["rounds"][3]["dropped"] = {"client-2": "prompt visual is not finite"}
    results["rounds"][4] |= {"kept_old_prompt": True, "loss": None}
    tree = page(results)
    assert [line.text for line in tree.one("div", class_="warnings").all("li")] == [
        "round 4: client-2: prompt visual is not finite; not used",
        "round 5: nothing to average; the prompts did not change",
    ]
    assert points(charts(tree)["Training loss"]) == {"line macro": 9}  # a gap


def test_a_problem_of_several_rounds_is_listed_once():
    results = sample_results()
    for number in (1, 2, 3, 6):
        results["rounds"][number]["holdout"] = {"trainings_rolled_back": 1.0}
    (line,) = page(results).one("div", class_="warnings").all("li")
    assert line.text.startswith("rounds 2 to 4, 7: 1 site rolled training back")


def test_warnings_beyond_the_limit_are_counted():
    results = sample_results()
    results["rounds"][0]["dropped"] = {f"client-{k}": "broken" for k in range(100)}
    lines = page(results).one("div", class_="warnings").all("li")
    assert len(lines) == 21
    assert lines[-1].text == "and 80 more: see rounds.jsonl"


def test_a_site_without_labels():
    shown = example(truth=None, right=None)
    tree = page(sample_results(labelled=False), [shown, replace(shown, confidence=0.31, least_confident=True)])
    assert list(tiles(tree)) == ["Stable labels", "Rolled back"]
    said = words_of(tree.one("section", id="result").all("p")[0])
    assert said.startswith("Accuracy is not measured") and "not calibrated and gives no estimate" in said
    assert list(heat_maps(tree)) == ["Estimated", "Allocated", "Selected", "Change by the allocation"]
    drawn = charts(tree)
    without_truth = {"Training loss", "Effect of refreshes", "Drift diversity", "Cosine distance"}
    assert set(drawn) == without_truth | {"Bytes per round", "Time per round"}
    assert points(drawn["Training loss"]) == {"line macro": 10}
    assert not tree.all("section", id="classes")
    assert words_of(tree.one("article").one("li")) == "91.2 % client-1"
    assert words_of(tree.one("div", class_="least-confident").one("li")) == "three 31.0 % client-1"
    text = words_of(tree.one("body"))
    assert "None" not in text
    assert "nan" not in text.lower()
    assert not re.search(r"better|worse|flatters", text)


def test_without_labels_the_result_is_priors_confidence_rollbacks_and_the_next_step():
    results = with_priors(labelled=False)
    results["rounds"][1]["holdout"] = {"trainings_rolled_back": 1.0}
    section = parse(_render(outcome_of(results), [], LAST_LABELS)).one("section", id="result")
    shown = tiles(section)
    assert shown["Mean confidence"].startswith("Mean confidence 65.0 % ")
    assert shown["Unsure images"] == "Unsure images 50 with a confidence below 50 %"
    assert shown["Text and prototypes agree"].startswith("Text and prototypes agree 75.0 % ")
    assert shown["Rolled back"].startswith("Rolled back 1 round round 2: 1 site ")
    assert section.one("pre").text == "fedcopl review . --client client-1"
    assert rows(section.one("table"))[1:] == [
        ["client-0", "cat 60 % (31 to 89), dog 40 % (11 to 69)", "80.0 %", "0", "100.0 %", "30"],
        ["client-1", "dog 80 % (70 to 90), cat 20 % (10 to 30)", "50.0 %", "50", "50.0 %", "20"],
    ]  # 100 images: 0.2 + 2 sqrt((0.2 + 0.01) / 100) = 0.29, 0.05 + 2 sqrt((0.05 + 0.01) / 100) = 0.10


def last_labels(labels, confidence, *others):
    return LastLabels(np.repeat(labels, 50), np.log(np.repeat(confidence, 50)), *others)


LAST_LABELS = {
    "client-0": last_labels([0, 1], [0.9, 0.7], 1.0, np.array([0.6, 0.4]), np.array([0.2, 0.2])),
    "client-1": last_labels([1, 1], [0.4, 0.6], 0.5, np.array([0.2, 0.8]), np.array([0.05, 0.05])),
}


def test_a_client_that_refused_the_priors_has_no_prior_and_is_in_no_estimate():
    results = with_priors(labelled=False)
    results["rounds"][0]["bounded"] = {"client-1": "Adapt: rejected the priors, which contradict its images"}
    tree = parse(_render(outcome_of(results), [], LAST_LABELS))
    section = tree.one("section", id="result")
    assert rows(section.one("table"))[2][:2] == ["client-1", "rejected the priors"]
    assert rows(tree.one("section", id="priors").one("table"))[2] == ["client-1", "not estimated"]
    assert words_of(section.one("ul", class_="ranges")).startswith("estimate without labels 80 %")
    assert "without 1 client that rejected the priors" in words_of(section)


def test_the_client_to_review_has_enough_images():
    results = with_priors(labelled=False)
    results["clients"][1]["train"] = 5
    section = parse(_render(outcome_of(results), [], LAST_LABELS)).one("section", id="result")
    assert section.one("pre").text == "fedcopl review . --client client-0"


def test_after_a_review_the_next_step_is_another_client_and_then_the_classifier():
    reviews = [ReviewedClient(f"client-{k}", 0.9, 0.71, 0.97, 20) for k in (1, 0)]
    run = outcome_of(with_priors(labelled=False))
    steps = [
        parse(_render(run, [], LAST_LABELS, reviews[:n])).one("section", id="result").one("pre").text for n in (1, 2)
    ]
    assert steps == ["fedcopl review . --client client-0", "fedcopl predict PHOTOS -c . --client client-0"]


def test_equal_priors_are_no_evidence_of_a_difference():
    results = with_priors(labelled=False)
    results["refreshes"][-1]["class_prior"] = [[0.5, 0.5], [0.5, 0.5]]
    assert "the evidence for different priors is too weak" in words_of(page(results).one("section", id="priors"))


def test_the_label_free_accuracy_is_marked_as_an_estimate():
    section = parse(_render(outcome_of(with_priors(labelled=False)), [], LAST_LABELS)).one("section", id="result")
    (estimate,) = section.one("ul", class_="ranges").all("li")
    assert words_of(estimate) == "estimate without labels 65 % 30 % to 82 %"  # 65 - 35, 65 + 35 / 2
    assert "nothing was measured on this data" in words_of(section)


def test_answers_of_a_review_come_before_the_estimate_without_labels():
    reviews = [ReviewedClient("client-1", 0.9, 0.71, 0.97, 20)]
    page_of = _render(outcome_of(with_priors(labelled=False)), [], LAST_LABELS, reviews)
    by_review, label_free = parse(page_of).one("section", id="result").all("ul", class_="ranges")
    assert words_of(by_review) == "client-1 20 images reviewed 90 % 71 % to 97 %"
    assert words_of(label_free).startswith("estimate without labels")


def test_answers_of_a_review_of_every_client_replace_the_estimate_without_labels():
    reviews = [ReviewedClient(f"client-{k}", 0.9, 0.71, 0.97, 20) for k in range(2)]
    page_of = _render(outcome_of(with_priors(labelled=False)), [], LAST_LABELS, reviews)
    assert "estimate without labels" not in words_of(parse(page_of).one("section", id="result"))


@pytest.mark.parametrize(("confidence", "low", "high"), [(1.0, 1.0, 1.0), (0.98, 0.86, 0.99), (0.2, 0.0, 0.6)])
def test_the_range_of_an_estimate_without_labels(confidence, low, high):
    assert _label_free_accuracy(confidence) == pytest.approx((confidence, low, high))


def test_the_loss_axis_starts_at_zero():
    loss = charts(page(sample_results()))["Training loss"]
    assert "0.0" in [text.text for text in loss.all("text")]


def test_a_run_without_any_training_has_no_loss():
    results = sample_results(labelled=False)
    for record in results["rounds"]:
        record["loss"] = None
    tree = page(results)
    assert "Training loss" not in charts(tree)
    assert "No client trained in any round" in tree.one("div", id="rounds").text


def test_the_summary_of_a_run_without_training_names_no_trained_classifier():
    results = sample_results(labelled=False)
    for record in results["rounds"]:
        record |= {"loss": None, "kept_old_prompt": True}
    assert "nothing was trained" in words_of(page(results).one("p", class_="lead"))


@pytest.mark.parametrize("labelled", [True, False])
def test_one_client_one_class_one_round(labelled):
    tree = page(sample_results(clients=1, classes=("only",), rounds=1, labelled=labelled))
    drawn = charts(tree)
    assert len(drawn) == (6 if labelled else 5)  # one refresh is no curve
    assert {number for chart in drawn.values() for number in points(chart).values()} == {1}
    assert words_of(tree.one("p", class_="lead")).startswith("1 client trained a classifier of 1 class")


def test_nothing_was_estimated_at_all():
    results = sample_results()
    nothing = [[0] * 10 for _ in range(5)]
    results["refreshes"][-1] |= {"estimated": nothing, "allocated": nothing, "selected": nothing, "images": 0}
    for client in results["clients"]:
        client["true_counts"] = None
    cells = heat_maps(page(results))["Estimated"].one("tbody").all("td")
    assert {(cell.text, cell.attributes["class"]) for cell in cells} == {("0", "h0")}


def test_names_are_text_and_never_markup():
    classes = (NASTY, '" onmouseover="x', "Ünïcødé 猫", "a&b", "{{ 7 * 7 }}")
    results = sample_results(name=NASTY, classes=classes)
    results["clients"][0]["name"] = NASTY
    results["settings"]["data"]["source"] = NASTY
    results["versions"]["torch"] = NASTY
    results["rounds"][0]["dropped"] = {NASTY: NASTY}
    for row in results["refreshes"][-1]["selected"]:
        row[0] = 0
    shown = [example(label=0, pseudo=NASTY, truth=NASTY, right=False, client=NASTY)]
    html = _render(outcome_of(results), shown)
    tree = parse(html)
    assert "<script" not in html.lower()
    assert not tree.all("script")
    assert not [e for e in tree if any(name.startswith("on") for name in e.attributes)]
    assert tree.one("h1").text == tree.one("article").one("h3").text.split(" 1 of")[0] == NASTY
    assert rows(heat_maps(tree)["True"])[0] == ["", *classes]
    assert tree.one("img").attributes["alt"] == f"image 17, labelled {NASTY}"


def test_nothing_is_loaded_from_anywhere():
    html = _render(sample_outcome(), [example()])
    tree = parse(html)
    assert not re.search(r"https?:|@import|(?<!['\"])//", html)
    assert set(re.findall(r"url\(([^)]*)\)", html)) == {"#hatch"}
    links = [e.attributes[name] for e in tree for name in ("src", "href", "srcset", "data") if name in e.attributes]
    assert len(links) == 5 + 1 + 1  # the sections, the icon, the example
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "default-src 'none'" in tree.all("meta", http_equiv="Content-Security-Policy")[0].attributes["content"]


def test_ids_are_unique_and_every_reference_leads_somewhere():
    tree = page(sample_results())
    ids = [e.attributes["id"] for e in tree if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    inner = {a.attributes["href"][1:] for a in tree.all("a")}
    named = {section.attributes["aria-labelledby"] for section in tree.all("section")}
    assert inner == {section.attributes["id"] for section in tree.all("section")}
    assert named <= set(ids)


def test_headings_go_down_one_step_at_a_time():
    levels = [int(e.tag[1]) for e in page(sample_results(), [example()]) if re.fullmatch("h[1-6]", e.tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_tables_can_be_reached_and_read_out():
    tree = page(sample_results())
    boxes = tree.all("div", class_="scroll")
    assert sum(len(box.all("table")) for box in boxes) == len(tree.all("table")) == 13
    assert all(box.attributes["tabindex"] == "0" and box.attributes["aria-label"] for box in boxes)
    assert all(head.attributes["scope"] in ("col", "row") for head in tree.all("th"))
    assert all(svg.attributes.get("aria-label") or svg.attributes.get("aria-hidden") for svg in tree.all("svg"))
    assert all(img.attributes["alt"] for img in page(sample_results(), [example()]).all("img"))


def test_charts_have_a_text_alternative():
    results = sample_results()
    label = charts(page(results))["Training loss"].attributes["aria-label"]
    first, last = results["rounds"][0]["loss"], results["rounds"][-1]["loss"]
    assert label == f"Training loss: loss from {first:.3f} to {last:.3f}"


def test_a_thousand_clients_and_two_hundred_classes():
    classes = tuple(f"class {number}" for number in range(200))
    results = sample_results(clients=1000, classes=classes, rounds=3)
    images = [Image.effect_noise((200, 200), 80)] * 2000
    index = np.arange(2000)
    shown = gallery(images, None, classes, [ChosenImages("client-7", index, index % 200, -index / 2000)])
    html = _render(outcome_of(results), shown)
    assert len(html) < 6_000_000
    tree = parse(html)
    head, *body, others, total = rows(heat_maps(tree)["Estimated"])
    assert (len(head), len(body)) == (201, 30)
    assert others[0] == "970 others"
    sums = [sum(int(row[c].replace(",", "")) for row in (*body, others)) for c in range(1, 201)]
    assert [f"{number:,}" for number in sums] == total[1:]
    biggest = sorted((client["train"] for client in results["clients"]), reverse=True)
    few, rest = (rows(table)[1:] for table in tree.one("section", id="result").all("table"))
    assert [int(row[-2]) for row in (*few, *rest)] == biggest
    assert [row[0] for row in few] == [row[0] for row in body]
    assert "The 30 clients with the most images are shown" in words_of(tree.one("div", id="balance"))
