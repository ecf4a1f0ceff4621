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
from documents import page, thing_called
from layers import LAYERS, LEVEL, SOURCE


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


def named_in_the_page():
    packages = "|".join(sorted(LEVEL))
    return sorted(
        set(re.findall(rf"`((?:{packages})\.[\w.]+)`", page("docs/architecture.md"))) - {"messages.py", "report.html"}
    )


def test_the_page_names_many_functions():
    assert len(named_in_the_page()) >= 40


@pytest.mark.parametrize("name", named_in_the_page())
def test_the_page_names_real_functions(name):
    assert callable(thing_called(name))


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_layers_of_the_documents_are_those_of_the_test(document):
    [written] = re.findall(r"```\n(errors.*?)```", page(document), re.S)
    layers = [set(re.findall(r"\w+", layer)) for layer in written.split("<")]
    assert layers == LAYERS


def test_every_package_is_named_in_the_page():
    named = set(re.findall(r"`(\w+)/", page("docs/architecture.md")))
    assert {part for part in LEVEL if (SOURCE / part).is_dir()} <= named
