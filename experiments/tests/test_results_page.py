"""The page of our own grid: only what stands between markers is ours to change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.errors import ConfigError
from fedcopl.methods import METHODS
from fedcopl.methods.base import Method
from fedcopl_experiments.experiment_catalog import EXPERIMENTS, runs_of
from fedcopl_experiments.results_page import new_page, page_sections, update_page
from made_up_outcomes import DEMO, SMOKE, MadeUp

words = st.text(st.characters(codec="utf-8", exclude_characters="<\r"), max_size=60)


def sections(rule=lambda config: 0.75, stage=SMOKE, seeds=(1,)):
    return page_sections(stage, MadeUp(rule), seeds, "fedcopl reproduce grid --scale smoke")


def test_a_section_for_each_question_and_skew():
    kinds = ("accuracy", "gain", "labels", "diagnostics")
    names = {f"{kind}-{skew}" for kind in kinds for skew in ("dirichlet-0.1", "quantity")}
    assert set(sections(stage=DEMO)) == {"how", *names}


def test_numbers_are_those_of_the_runs():
    final = {"fedcopl": 0.75, "promptfl": 0.6}
    made = sections(lambda config: final.get(config.method, 0.25) + config.seed / 100, DEMO, (1, 3))
    assert "| FedCoPL | **77.0 ± 1.4** |" in made["accuracy-dirichlet-0.1"]  # of 76 and 78
    assert "| FedCoPL | **27.0 ± 1.4** |" in made["gain-quantity"]  # above 50
    assert "| Local | −23.0 ± 1.4 |" in made["gain-quantity"]
    assert "| zero-shot CLIP |  |  |  | 50.0 ± 0.0 |" in made["accuracy-quantity"]
    # drift in every round as written down; recall 0.75 + 0.01 and 0.75 + 0.03; 200 bytes in two rounds
    assert "| FedCoPL | 150.0 ± 0.0 | 50.0 ± 0.0 | 77.0 ± 1.4 | 0.1 ± 0.0 |" in made["diagnostics-quantity"]
    assert "| CoPL | 90.0 ± 0.0 | 90.0 ± 0.0 | 7.0 ± 0.0 |" in made["labels-quantity"]


def test_a_new_method_has_its_rows_by_itself(monkeypatch):
    class Biased(Method):
        title = "FedBias"

    monkeypatch.setitem(METHODS, "fedbias", Biased)
    made = sections()
    for kind in ("accuracy", "gain", "diagnostics"):
        assert "| FedBias |" in made[f"{kind}-dirichlet-0.1"]


def test_how_it_was_made():
    runs = runs_of([EXPERIMENTS["grid"]], SMOKE, [1])
    how = sections(lambda config: 0.5 if config.method == "fedcopl" else None)["how"]
    assert f"`fedcopl reproduce grid --scale smoke`: 1 of {len(runs)} runs" in how
    assert "`rounds=1`" in how
    assert "`labels.per_class=4`" in how
    assert "`labels.refresh_every" not in how
    assert "fedcopl 0.1.0+abc; python 3.11.0." in how


def test_a_new_page_has_every_section_filled():
    made = sections(stage=DEMO)
    page = new_page(made, DEMO)
    for text in made.values():
        assert text in page
    assert update_page(page, made, "page") == page


@given(words, words, words)
def test_what_a_person_wrote_stays(before, between, after):
    made = {"one": "| 1 |\n", "two": "| 2 |\n"}
    page = f"{before}\n<!-- table: one -->\nold\n<!-- end -->{between}<!-- table: two -->\n<!-- end -->{after}"
    filled = update_page(page, made, "page")
    first, second = (f"<!-- table: {name} -->\n\n{text}\n<!-- end -->" for name, text in made.items())
    assert filled == f"{before}\n{first}{between}{second}{after}"
    assert update_page(filled, made, "page") == filled


def test_of_two_grids_only_the_one_that_is_asked_for_is_made_anew():
    made = page_sections(DEMO, MadeUp(lambda config: 0.75), (1,), "fedcopl reproduce grid-priors", "grid-priors")
    assert set(made) == {"how-priors", "priors-dirichlet-0.1", "priors-labels-dirichlet-0.1"}
    columns = [
        f"{labeler} {priors}" for labeler in ("CoPL", "FPL", "CPL", "none") for priors in ("no priors", "+ priors")
    ]
    assert f"| Method | {' | '.join(columns)} |" in made["priors-dirichlet-0.1"]
    page = "<!-- table: how -->\nold\n<!-- end -->\n<!-- table: how-priors -->\n<!-- end -->"
    filled = update_page(page, made, "page", others=["how"])
    assert "\nold\n" in filled and made["how-priors"] in filled


def test_of_the_grid_with_priors_only_what_was_played_is_shown():
    def rule(config):
        return 0.75 if (config.method, config.labeler) in {("fedcopl", "copl"), ("promptfl", "fpl")} else None

    made = page_sections(DEMO, MadeUp(rule), (1,), "fedcopl reproduce grid-priors", "grid-priors")
    head, _, *rows = made["priors-dirichlet-0.1"].splitlines()
    assert head == "| Method | CoPL no priors | CoPL + priors | FPL no priors | FPL + priors |"
    assert [row.split(" |")[0] for row in rows] == ["| FedCoPL", "| PromptFL"]
    assert rows[0].endswith("| – | – |")


def test_backslashes_in_a_table_are_backslashes():
    page = "<!-- table: one -->\n<!-- end -->"
    assert r"\1 \g<0>" in update_page(page, {"one": r"\1 \g<0>"}, "page")


def test_a_page_that_asks_for_what_there_is_not():
    with pytest.raises(ConfigError, match=r"page\.md: there is no table 'three' to put there \(known: one\)"):
        update_page("<!-- table: three -->\n<!-- end -->", {"one": ""}, "page.md")
    with pytest.raises(ConfigError, match=r"page\.md: has no <!-- table: NAME -->"):
        update_page("nothing here", {"one": ""}, "page.md")
