"""The picture and the page of the house agree with the house."""

import re
from html import unescape
from textwrap import wrap

import pytest

from architecture_picture import (
    CHARACTERS,
    GROUND,
    GROUND_CHARACTERS,
    PICTURE,
    all_imports,
    picture,
    summaries,
    without_what_follows,
)
from layers import LEVEL


def test_the_picture_is_that_of_the_imports():
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run tools/architecture_picture.py and look at it"


@pytest.mark.parametrize("part", sorted(LEVEL))
def test_what_a_part_says_of_itself_fits_into_its_box(part):
    assert 1 <= len(wrap(summaries()[part], GROUND_CHARACTERS if part in GROUND else CHARACTERS)) <= 2


def test_arrows_are_imports_and_lead_to_every_import():
    graph = all_imports()
    drawn = without_what_follows(graph)
    assert all(lower in graph[upper] for upper, lower in drawn)
    reached = {part: reach(part, drawn) for part in graph}
    assert all(used - set(GROUND) <= reached[part] for part, used in graph.items())


def reach(part, drawn):
    direct = {lower for upper, lower in drawn if upper == part}
    return direct.union(*(reach(lower, drawn) for lower in direct))


def test_leaving_out_what_follows():
    graph = {"top": {"middle", "low"}, "middle": {"low"}, "low": {"errors"}, "errors": set()}
    assert without_what_follows(graph) == [("middle", "low"), ("top", "middle")]


def test_a_box_says_all_that_it_imports():
    said = dict(re.findall(r"<title>(\w+) imports ([^<]*)</title>", unescape(picture())))
    assert set(said["report"].split(", ")) == all_imports()["report"]
