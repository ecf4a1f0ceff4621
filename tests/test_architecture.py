"""The picture and the page of the architecture agree with the code, which keeps to a size budget."""

import ast
import re
import traceback
from html import unescape
from pathlib import Path
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
    transitive_reduction,
)
from documents import page, resolve_name
from fedcopl.config import RunConfig
from fedcopl.labelers import copl
from fedcopl.methods.trainer import SGD
from fedcopl.simulation.simulate import simulate
from layers import LAYERS, LEVEL, MODULES, SOURCE
from small_digits import small_digits


def test_the_picture_is_up_to_date_with_the_imports():
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run tools/architecture_picture.py and look at it"


@pytest.mark.parametrize("part", sorted(LEVEL))
def test_the_summary_of_a_part_fits_into_its_box(part):
    assert 1 <= len(wrap(summaries()[part], GROUND_CHARACTERS if part in GROUND else CHARACTERS)) <= 2


def test_arrows_are_imports_and_lead_to_every_import():
    graph = all_imports()
    drawn = transitive_reduction(graph)
    assert all(lower in graph[upper] for upper, lower in drawn)
    reached = {part: reach(part, drawn) for part in graph}
    assert all(used - set(GROUND) <= reached[part] for part, used in graph.items())


def reach(part, drawn):
    direct = {lower for upper, lower in drawn if upper == part}
    return direct.union(*(reach(lower, drawn) for lower in direct))


def test_transitive_reduction():
    graph = {"top": {"middle", "low"}, "middle": {"low"}, "low": {"errors"}, "errors": set()}
    assert transitive_reduction(graph) == [("middle", "low"), ("top", "middle")]


def test_the_title_of_a_box_lists_all_its_imports():
    titles = dict(re.findall(r"<title>(\w+) imports ([^<]*)</title>", unescape(picture())))
    assert set(titles["report"].split(", ")) == all_imports()["report"]


def named_in_the_page():
    packages = "|".join(sorted(LEVEL))
    return sorted(
        set(re.findall(rf"`((?:{packages})\.[\w.]+)`", page("docs/architecture.md"))) - {"messages.py", "report.html"}
    )


def test_the_page_names_many_functions():
    assert len(named_in_the_page()) >= 40


@pytest.mark.parametrize("name", named_in_the_page())
def test_the_page_names_real_functions(name):
    assert callable(resolve_name(name))


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_documents_list_the_layers_of_the_tool(document):
    [block] = re.findall(r"```\n(errors.*?)```", page(document), re.S)
    layers = [set(re.findall(r"\w+", layer)) for layer in block.split("<")]
    assert layers == LAYERS


def test_every_package_is_named_in_the_page():
    named = set(re.findall(r"`(\w+)/", page("docs/architecture.md")))
    assert {part for part in LEVEL if (SOURCE / part).is_dir()} <= named


# Size budget: raising a number is a decision that the commit message explains; lower it whenever the code shrinks.
MAX_LINES = 32_113
MAX_FILES = 198
MAX_PUBLIC_NAMES = 800  # functions and classes at the top level of modules
MAX_PUBLIC_CONSTANTS = 194
MAX_LABEL_DEPTH = 10  # stack frames of this package from `simulate` to the selection of an image's pseudo label
MAX_STEP_DEPTH = 13  # from `simulate` to a step of SGD


def public_names(tree):
    """Return the public functions and classes at a module's top level, and its public constants."""
    defined, constants = set(), set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            constants |= {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return tuple([name for name in names if not name.startswith("_")] for names in (defined, constants))


def test_size_budget():
    texts = [path.read_text(encoding="utf-8") for path in MODULES]
    names = [public_names(ast.parse(text)) for text in texts]
    assert sum(text.count("\n") for text in texts) <= MAX_LINES
    assert len(texts) <= MAX_FILES
    assert sum(len(defined) for defined, _ in names) <= MAX_PUBLIC_NAMES
    assert sum(len(constants) for _, constants in names) <= MAX_PUBLIC_CONSTANTS


def depth():
    """Return the number of stack frames of this package, counted from `simulate`."""
    frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(str(SOURCE))]
    names = [f"{Path(frame.filename).relative_to(SOURCE)} {frame.name}" for frame in frames]
    return len(names) - names.index("simulation/simulate.py simulate")


def test_stack_depth_of_a_label_and_of_a_training_step(tmp_path, monkeypatch):
    depths = {"label": set(), "step": set()}
    for kind, owner, name in (("label", copl, "select"), ("step", SGD, "step")):
        function = getattr(owner, name)

        def probe(*arguments, kind=kind, function=function, **options):
            depths[kind].add(depth() + 1)  # `probe` calls the function, whose own frame is not counted yet
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, probe)
    settings = {"rounds": 1, "data": {"clients": 2}, "train": {"epochs": 1}, "model": {"threads": 1}}
    simulate(RunConfig.from_mapping(settings, "test"), tmp_path / "run", dataset=small_digits(), workers=1)
    assert max(depths["label"]) <= MAX_LABEL_DEPTH
    assert max(depths["step"]) <= MAX_STEP_DEPTH
