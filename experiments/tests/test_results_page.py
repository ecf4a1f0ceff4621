"""The page of our own grid: only what stands between markers is ours to change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.errors import ConfigError
from fedcopl.labelers import LABELERS
from fedcopl.methods import METHODS
from fedcopl.methods.base import Method
from fedcopl_experiments.experiment_catalog import EXPERIMENTS, runs_of
from fedcopl_experiments.results_page import new_page, page_sections, update_page
from made_up_outcomes import DEMO, SMOKE, MadeUp

words = st.text(st.characters(codec="utf-8", exclude_characters="<\r"), max_size=60)


def sections(rule=lambda config: 0.75, stage=SMOKE, seeds=(1,)):
    return page_sections(stage, MadeUp(rule), seeds, "fedcopl reproduce grid --scale smoke")


def test_numbers_are_those_of_the_runs():
    def rule(config):
        priors = config.priors.prototypes
        return {"fedcopl": 0.75, "promptfl": 0.6}.get(config.method, 0.25) + config.seed / 100 + priors / 10

    made = sections(rule, DEMO, (1, 3))
    assert set(made) == {"how", "grid"}
    head, _, *rows = made["grid"].splitlines()
    columns = [
        f"{labeler} {word}" for labeler in ("no labeler", "CoPL", "FPL") for word in ("as published", "+ priors")
    ]
    assert head.startswith(f"| Method | {' | '.join(columns)} |")
    assert head.endswith("| cost seconds | cost kB up a round |")
    row = next(row for row in rows if row.startswith("| FedCoPL |"))
    assert row.startswith("| FedCoPL |  |  | **77.0 ± 1.4** | **87.0 ± 1.4** | **77.0 ± 1.4** |")  # of 76 and 78
    assert row.endswith("| 3.0 ± 0.0 | 0.1 ± 0.0 |")  # 3 seconds, 200 bytes in two rounds
    assert rows[0].startswith("| CLIP | **50.0 ± 0.0** |")
    assert any(row.startswith("| PromptFL |  |  | <u>62.0 ± 1.4</u> |") for row in rows)


def test_a_new_method_and_a_new_labeler_have_their_places_by_themselves(monkeypatch):
    class Biased(Method):
        title = "FedBias"

    class Own(LABELERS["upl"]):
        title = "OwnLabels"

    monkeypatch.setitem(METHODS, "fedbias", Biased)
    monkeypatch.setitem(LABELERS, "own", Own)
    made = sections(stage=DEMO)["grid"]
    assert "| FedBias |" in made
    assert "| OwnLabels as published | OwnLabels + priors |" in made


def test_only_what_was_played_is_shown():
    def rule(config):
        return 0.75 if (config.method, config.labeler) in {("fedcopl", "copl"), ("promptfl", "fpl")} else None

    head, _, *rows = sections(rule, DEMO)["grid"].splitlines()
    columns = ("CoPL as published", "CoPL + priors", "FPL as published", "FPL + priors", "cost seconds")
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


def test_a_new_page_has_every_section_filled():
    made = sections(stage=DEMO)
    page = new_page(made)
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


def test_backslashes_in_a_table_are_backslashes():
    page = "<!-- table: one -->\n<!-- end -->"
    assert r"\1 \g<0>" in update_page(page, {"one": r"\1 \g<0>"}, "page")


def test_a_page_that_asks_for_what_there_is_not():
    with pytest.raises(ConfigError, match=r"page\.md: there is no table 'three' to put there \(known: one\)"):
        update_page("<!-- table: three -->\n<!-- end -->", {"one": ""}, "page.md")
    with pytest.raises(ConfigError, match=r"page\.md: has no <!-- table: NAME -->"):
        update_page("nothing here", {"one": ""}, "page.md")
