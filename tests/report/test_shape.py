"""Whatever a file holds, it is either shown or refused with a reason."""

import json
import re
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.report.comparison_page import render_comparison
from fedcopl.report.reading import Run
from fedcopl.report.run_page import render
from fedcopl.report.shape import completed
from report.sample_results import of_sites, sample_results

SMALL = sample_results(clients=2, classes=("cat", "dog"), rounds=2, every=1)


def places(value, path=()):
    """The way to everything that can be broken."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        yield from places(below, (*path, key))


def put(results, path, value):
    broken = deepcopy(results)
    inside = broken
    for key in path[:-1]:
        inside = inside[key]
    if value is ...:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return broken


def test_a_whole_outcome_stays_as_it_is():
    assert completed(SMALL) == SMALL


def test_an_outcome_survives_the_file():
    assert completed(json.loads(json.dumps(SMALL))) == SMALL


def test_what_a_server_does_not_know_is_none_or_empty():
    whole = completed(of_sites(SMALL))
    assert whole["refreshes"] == []
    unknown = dict.fromkeys(("train", "test", "zero_shot", "final", "true_counts"))
    assert whole["clients"][1] == {"name": "client-1"} | unknown  # sites come and go: the scores say not whose they are
    assert whole["best"]["macro"] == max(record["macro"] for record in SMALL["rounds"])
    assert whole["zero_shot"]["global"] is whole["final"]["global"] is None


PLACES = list(places(SMALL))
GARBAGE = [..., None, "x", -1, 1.5, 10**30, 1e308, True, [], {}, [None], {"a": []}]


@given(st.sampled_from(PLACES), st.sampled_from(GARBAGE))
def test_what_is_broken_is_shown_or_refused(path, value):
    broken = put(SMALL, path, value)
    try:
        whole = completed(broken)
    except ValueError:
        return
    assert "</html>" in render(broken, [])
    assert "</html>" in render_comparison([Run(Path("a"), SMALL, []), Run(Path("b"), whole, [])])


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (["rounds"], [], "rounds is empty"),
        (["rounds"], [3], "rounds is not a list of objects"),
        (["rounds", 1, "loss"], ..., "rounds[1].loss is missing"),
        (["rounds", 0, "bytes_up"], "many", "rounds[0].bytes_up is 'many'"),
        (["rounds", 0, "round"], True, "rounds[0].round is True"),
        (["rounds", 0, "recall"], [0.5], "rounds[0].recall is not one number for each of 2 classes"),
        (["rounds", 0, "drift", "text"], {}, "rounds[0].drift.text.diversity is missing"),
        (["classes"], [], "classes is empty"),
        (["classes", 0], 7, "classes is not a list of names"),
        (["shared"], "visual", "shared is not a list of names"),
        (["rounds", 0, "examples"], 10**30, f"rounds[0].examples is {10**30}"),
        (["refreshes", 0, "estimated"], [[1, 2]], "refreshes[0].estimated has 1 rows for 2 clients"),
        (["refreshes", 0, "selected", 1], [1, -2], "refreshes[0].selected[1] is not one count for each of 2 classes"),
        (["clients", 0, "true_counts"], [1, 2, 3], "clients[0].true_counts is not one count for each of 2 classes"),
        (["final", "macro"], "good", "final.macro is 'good'"),
        (["settings"], None, "settings is None"),
    ],
)
def test_the_reason_says_where(path, value, why):
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        completed(put(SMALL, path, value))


@pytest.mark.parametrize("value", [None, 3, "x", [], [1]])
def test_what_is_no_object_at_all(value):
    with pytest.raises(ValueError, match="it is no object"):
        completed(value)
