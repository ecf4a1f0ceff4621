"""The page of the grid: only the text between markers is replaced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_outcomes import DEMO, SMOKE, FakeOutcomes
from fedcopl.errors import ConfigError
from fedcopl.labelers import LABELERS
from fedcopl.methods import METHODS
from fedcopl.methods.base import Method
from fedcopl_experiments.experiment_catalog import EXPERIMENTS, runs_of
from fedcopl_experiments.results_page import new_page, page_sections, update_page

words = st.text(st.characters(codec="utf-8", exclude_characters="<\r"), max_size=60)


def sections(rule=lambda config: 0.75, setup=SMOKE, seeds=(1,)):
    return page_sections(setup, FakeOutcomes(rule), seeds, "fedcopl reproduce grid --scale smoke")


def test_numbers_are_those_of_the_runs():
    def rule(config):
        priors = config.priors.prototypes
        return {"fedcopl": 0.75, "promptfl": 0.6}.get(config.method, 0.25) + config.seed / 100 + priors / 10

    made = sections(rule, DEMO, (1, 3))
    assert set(made) == {"how", "coverage", "grid"}
    head, _, *rows = made["grid"].splitlines()
    columns = [f"as published {labeler}" for labeler in ("no labeler", "CoPL", "FPL")]
    assert head.startswith(f"| Method | {' | '.join(columns)} |")
    assert head.endswith("| cost seconds | cost kB up a round |")
    row = next(row for row in rows if row.startswith("| FedCoPL |"))
    assert row.startswith("| FedCoPL |  | **77.0 ± 1.4** | **77.0 ± 1.4** |")  # of 76 and 78
    assert row.count(" **87.0 ± 1.4** ") == len(LABELERS)
    assert row.endswith("| 3.0 | 0.1 |")  # 3 seconds, 200 bytes in two rounds
    assert rows[0].startswith("| CLIP | **50.0 ± 0.0** |")
    assert any(row.startswith("| PromptFL |  | <u>62.0 ± 1.4</u> |") for row in rows)


def test_new_method_and_labeler_get_row_and_column(monkeypatch):
    class Biased(Method):
        title = "FedBias"

    class Own(LABELERS["upl"]):
        title = "OwnLabels"

    monkeypatch.setitem(METHODS, "fedbias", Biased)
    monkeypatch.setitem(LABELERS, "own", Own)
    made = sections(setup=DEMO)["grid"]
    assert "| FedBias |" in made
    assert made.index("| as published OwnLabels |") < made.index("| + priors OwnLabels |")


def test_only_finished_runs_are_shown():
    def rule(config):
        return 0.75 if (config.method, config.labeler) in {("fedcopl", "copl"), ("promptfl", "fpl")} else None

    head, _, *rows = sections(rule, DEMO)["grid"].splitlines()
    columns = ("as published CoPL", "as published FPL", "+ priors CoPL", "+ priors FPL", "cost seconds")
    assert head.startswith(f"| Method | {' | '.join(columns)}")
    assert [row.split(" |")[0] for row in rows if row.startswith("|")] == ["| FedCoPL", "| PromptFL"]


def test_how_it_was_made():
    runs = runs_of([EXPERIMENTS["grid"]], SMOKE, [1])
    how = sections(lambda config: 0.5 if config.method == "fedcopl" else None)["how"]
    assert f"`fedcopl reproduce grid --scale smoke`: 2 of {len(runs)} runs" in how
    assert "`rounds=1`" in how
    assert "`labels.per_class=4`" in how
    assert "`labels.refresh_every" not in how
    assert "fedcopl 0.1.0+abc; python 3.11.0." in how


def test_coverage_counts_the_seeds_of_the_cells():
    """FedCoPL has two seeds without priors and one with them, PromptFL one without them."""

    def rule(config):
        finished = {("fedcopl", False): 2, ("fedcopl", True): 1, ("promptfl", False): 1}
        if config.labeler != "copl":
            return None
        return 0.5 if config.seed <= finished.get((config.method, config.priors.prototypes), 0) else None

    made = sections(rule, DEMO, (1, 2))["coverage"].splitlines()
    cells = [cell for cell in EXPERIMENTS["grid"].cells(DEMO) if cell.column[0] != "cost"]
    published, priors = (sum(cell.column[0] == word for cell in cells) for word in ("as published", "+ priors"))
    assert made == [
        "| | 2 seeds | 1 seed | not run |",
        "|---|---:|---:|---:|",
        f"| as published | 1 | 1 | {published - 2} |",
        f"| + priors | 0 | 1 | {priors - 1} |",
    ]


def test_a_new_page_has_every_section_filled():
    made = sections(setup=DEMO)
    page = new_page(made)
    for text in made.values():
        assert text in page
    assert update_page(page, made, "page") == page


@given(words, words, words)
def test_text_outside_markers_is_kept(before, between, after):
    made = {"one": "| 1 |\n", "two": "| 2 |\n"}
    page = f"{before}\n<!-- table: one -->\nold\n<!-- end -->{between}<!-- table: two -->\n<!-- end -->{after}"
    filled = update_page(page, made, "page")
    first, second = (f"<!-- table: {name} -->\n\n{text}\n<!-- end -->" for name, text in made.items())
    assert filled == f"{before}\n{first}{between}{second}{after}"
    assert update_page(filled, made, "page") == filled


def test_backslashes_are_kept():
    page = "<!-- table: one -->\n<!-- end -->"
    assert r"\1 \g<0>" in update_page(page, {"one": r"\1 \g<0>"}, "page")


def test_page_with_unknown_markers_is_refused():
    with pytest.raises(ConfigError, match=r"page\.md: there is no table 'three' \(known: one\)"):
        update_page("<!-- table: three -->\n<!-- end -->", {"one": ""}, "page.md")
    with pytest.raises(ConfigError, match=r"page\.md: has no <!-- table: NAME -->"):
        update_page("nothing here", {"one": ""}, "page.md")
