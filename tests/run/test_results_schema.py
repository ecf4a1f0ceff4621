"""The documented form of results.json is the one that is written."""

import json
import re
from dataclasses import fields

import pytest
from jsonschema import Draft202012Validator

from fedcopl.run.record import SCHEMA, Outcome, RoundRecord, round_to_plain, to_plain
from report.sample_results import of_sites, outcome_of, sample_results
from results_schema import DERIVED, KINDS, PAGE, SCHEMA_FILE, documented, page, schema, schema_text

OUTCOMES = [
    outcome_of(sample_results(clients=2, classes=("cat", "dog"), rounds=2, every=1)),
    outcome_of(of_sites(sample_results(clients=2, classes=("cat", "dog"), rounds=2, every=1))),
    Outcome(name="barely begun"),
]


def test_the_schema_is_that_of_the_types():
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run tools/results_schema.py"


def test_the_page_is_that_of_the_types():
    assert PAGE.read_text(encoding="utf-8") == page(), "run tools/results_schema.py"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_key_is_documented(kind):
    assert all(meaning for _, meaning in documented(kind).values())


def test_all_types_of_an_outcome_are_documented():
    assert set(schema()["$defs"]) - {"Headline"} <= {kind.__name__ for kind in KINDS}


@pytest.mark.parametrize("outcome", OUTCOMES, ids=["simulation", "server", "begun"])
def test_what_is_written_fits_the_schema(outcome):
    written = json.loads(json.dumps(to_plain(outcome)))
    Draft202012Validator(schema()).validate(written)
    assert set(written) <= set(schema()["properties"])
    assert set(written) >= {"schema"} | {name for name in DERIVED if outcome.rounds or name not in ("final", "best")}
    assert written["schema"] == SCHEMA


def test_a_round_fits_its_schema():
    form = {"$ref": "#/$defs/RoundRecord", "$defs": schema()["$defs"]}
    for record in OUTCOMES[0].rounds:
        Draft202012Validator(form).validate(json.loads(json.dumps(round_to_plain(record))))
    assert len(form["$defs"]["RoundRecord"]["properties"]) == len(fields(RoundRecord))


@pytest.mark.parametrize(("key", "value"), [("rounds", "none"), ("seed", -1), ("classes", [1]), ("final", 3)])
def test_schema_rejects_invalid_values(key, value):
    broken = json.loads(json.dumps(to_plain(OUTCOMES[0]))) | {key: value}
    assert not Draft202012Validator(schema()).is_valid(broken)


def test_each_link_within_the_page_leads_to_a_heading():
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", page(), re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", page())) <= headings
