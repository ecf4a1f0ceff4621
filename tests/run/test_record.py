"""Reading of outcomes: missing keys get defaults, and an invalid value is named with its path."""

import json
import re
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.federation.transport import RoundReport
from fedcopl.files import parse_json
from fedcopl.run.loop import round_record
from fedcopl.run.record import ClientRecord, Measured, measured, read_outcome, to_plain
from report.sample_results import of_sites, outcome_of, sample_results

SMALL = sample_results(clients=2, classes=("cat", "dog"), rounds=2, every=1)
GARBAGE = [..., None, "x", -1, 1.5, 10**30, 1e308, True, [], {}, [None], {"a": []}]


def paths(value, path=()):
    """The way to everything that can be broken."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        yield from paths(below, (*path, key))


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


def test_a_complete_outcome_is_written_and_read_unchanged():
    plain = to_plain(outcome_of(SMALL))
    for key, value in SMALL.items():
        if key not in ("rounds", "refreshes", "clients", "zero_shot"):
            assert plain[key] == value
    for key in ("rounds", "refreshes", "clients"):
        assert all(old.items() <= new.items() for old, new in zip(SMALL[key], plain[key], strict=True))
    assert SMALL["zero_shot"].items() <= plain["zero_shot"].items()


def test_an_outcome_is_written_and_read():
    outcome = outcome_of(SMALL)
    assert outcome_of(parse_json(json.dumps(to_plain(outcome)))) == outcome


def test_unknown_values_of_a_server_are_none_or_empty():
    whole = outcome_of(of_sites(SMALL))
    assert whole.refreshes == ()
    assert whole.clients == (ClientRecord(name="client-0"), ClientRecord(name="client-1"))
    assert whole.sites == ("client-0", "client-1")
    assert whole.best.macro == max(record["macro"] for record in SMALL["rounds"])
    assert whole.zero_shot.everywhere is whole.final.everywhere is None
    assert all(record.drift is record.recall is None for record in whole.rounds)
    assert ClientRecord(name="site") == ClientRecord(
        name="site", train=None, test=None, zero_shot=None, final=None, true_counts=None
    )


@pytest.mark.parametrize("key", [key for key in SMALL["rounds"][0] if key != "round"])
def test_missing_keys_get_defaults(key):
    assert len(read_outcome(put(SMALL, ("rounds", 1, key), ...)).rounds) == 2


@given(st.sampled_from(list(paths(SMALL))), st.sampled_from(GARBAGE))
def test_invalid_values_are_refused_and_valid_ones_kept(path, value):
    try:
        outcome = read_outcome(put(SMALL, path, value))
    except ValueError:
        return
    assert read_outcome(to_plain(outcome)) == outcome


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (["rounds", 0], 3, "rounds[0] is 3"),
        (["rounds", 0, "bytes_up"], "many", "rounds[0].bytes_up is 'many'"),
        (["rounds", 0, "round"], True, "rounds[0].round is True"),
        (["rounds", 0, "round"], ..., "rounds[0].round is missing"),
        (["rounds", 0, "recall"], [0.5], "rounds[0].recall is not one number for each of 2 classes"),
        (["rounds", 0, "macro"], 1.5, "rounds[0].macro is 1.5"),
        (["rounds", 1, "drift", "text"], 7, "rounds[1].drift.text is 7"),
        (["rounds", 0, "dropped"], ["a"], "rounds[0].dropped is ['a']"),
        (["classes", 0], 7, "classes[0] is 7"),
        (["shared"], "visual", "shared is 'visual'"),
        (["rounds", 0, "examples"], 10**30, f"rounds[0].examples is {10**30}"),
        (["rounds", 0, "seconds"], 1e16, "rounds[0].seconds is 1e+16"),
        (["refreshes", 0, "estimated"], [[1, 2]], "refreshes[0].estimated has 1 rows for 2 clients"),
        (["refreshes", 0, "selected", 1, 1], -2, "refreshes[0].selected[1][1] is -2"),
        (["refreshes", 0, "selected", 1], [1], "refreshes[0].selected[1] is not one number for each of 2 classes"),
        (["clients", 0, "true_counts"], [1, 2, 3], "clients[0].true_counts is not one number for each of 2 classes"),
        (["zero_shot", "macro"], "good", "zero_shot.macro is 'good'"),
        (["zero_shot", "recall"], [0.5], "zero_shot.recall is not one number for each of 2 classes"),
        (["settings"], None, "settings is None"),
    ],
)
def test_error_names_the_path(path, value, why):
    with pytest.raises(ValueError) as caught:
        read_outcome(put(SMALL, path, value))
    assert str(caught.value) == why


@pytest.mark.parametrize("value", [None, 3, "x", [], [1]])
def test_an_outcome_must_be_a_json_object(value):
    with pytest.raises(ValueError, match=f"^{re.escape(f'it is {value!r}')}$"):
        read_outcome(value)


def test_nan_is_read_as_not_measured():
    assert parse_json('{"loss": NaN, "macro": Infinity}') == {"loss": None, "macro": None}


def test_deeply_nested_json_is_refused():
    with pytest.raises(ValueError, match="it is nested too deeply"):
        parse_json("[" * 100_000)


def test_a_round_records_each_accuracy_under_its_own_name():
    # Clients with 1 of 2 and 9 of 10 right: macro (0.5 + 0.9) / 2, weighted 10 / 12; 3 of 4 of all images by one model.
    found = measured([(1, 2), (9, 10)], [(3, 4)])
    record = round_record(RoundReport(2, untrained={"a": (1, 4)}), found)
    assert (record.round, record.macro, record.weighted, record.everywhere) == (2, 0.7, 10 / 12, 0.75)
    assert record.clients == (0.5, 0.9)
    assert record.untrained.macro == 0.25


def test_clients_without_labelled_test_images_have_no_accuracy():
    found = measured([(1, 2), (0, 0), (2, 2)], [(8, 20), (12, 20)])
    assert (found.macro, found.weighted, found.everywhere) == (0.75, 0.75, 0.5)
    assert found.clients == (0.5, None, 1.0)
    assert measured([(0, 0)], [(0, 0)]) == Measured()
