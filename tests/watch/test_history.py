"""The history of several runs, from folders made by hand."""

import json
import os

import pytest
from starlette.testclient import TestClient

from fedcopl.config import RunConfig
from fedcopl.local_page.access import Keys
from fedcopl.watch.history import History, folder_of_runs, render_history, run_row, who_was_there
from fedcopl.watch.page import WatchPage
from local_page.run_folder import round_line, write_rounds

KEYS = Keys("secret-token", 8000)
NASTY = "<img src=x onerror=alert(1)>"


def make(folder, name, rounds, *, when, **more):
    """A finished run, written so many seconds after 1970."""
    folder.mkdir(parents=True)
    config = RunConfig(name=name, rounds=len(rounds), earlier=more.pop("earlier", ""))
    (folder / "settings.toml").write_text(config.to_toml())
    outcome = {"name": name, "classes": ["a", "b"], "rounds": rounds, "settings": config.model_dump(), **more}
    (folder / "results.json").write_text(json.dumps(outcome))
    write_rounds(folder, rounds)
    for file in folder.iterdir():
        os.utime(file, (when, when))


GUARD = {"training_harmed": 2.0, "average_harmed": 1.0, "average_undone": True}


@pytest.fixture
def runs(tmp_path):
    """Two runs, one from the other: a site left, one came, one refused, and a guard took something back."""
    north, south, east = "north", "south", "east"
    may = [
        round_line(0, sites=[north, south], dropped={}),
        round_line(1, sites=[north], dropped={south: "Train: no reply within 30 s"}),
    ]
    june = [
        round_line(0, sites=[north], dropped={east: "Adapt: refused: this site wants noise"}, guard=GUARD),
        round_line(1, sites=[north, east], dropped={}, macro=0.75),
    ]
    privacy = {"secure_aggregation": False, "epsilon": 1.5, "delta": 1e-5}
    clients = [{"name": name} for name in (north, south)]
    make(tmp_path / "runs/b", "may", may, when=1000, privacy=privacy, clients=clients, method="PromptFL + FPL + priors")
    clients = [{"name": name} for name in (north, east)]
    make(tmp_path / "runs/a", "june", june, when=2000, earlier="may 00ff", privacy=privacy, clients=clients)
    return tmp_path / "runs"


def test_runs_come_in_the_order_they_were_written_with_what_became_of_them(runs):
    seen = History(runs).look()
    may, june = (run_row(run, "finished") for run in seen.runs)
    assert (may.name, may.earlier, may.done, may.sites, may.known) == ("may", "", 2, 2, 2)
    assert (may.unused, may.refused, may.guarded) == (1, 0, 0)
    assert (may.method, june.method) == ("PromptFL + FPL + priors", "")
    assert (june.name, june.earlier, june.sites, june.known) == ("june", "may", 2, 2)
    assert (june.unused, june.refused, june.guarded) == (0, 1, 4)  # two trainings, one average at a site, one at all
    assert (june.epsilon, june.accuracy) == (1.5, 0.75)


def test_who_was_there_run_by_run(runs):
    assert who_was_there(History(runs).look().runs) == [("north", [2, 2]), ("south", [1, None]), ("east", [None, 1])]


def test_the_page_shows_it_and_only_what_changed_is_made_anew(runs):
    history = History(runs)
    browser = TestClient(WatchPage(history, KEYS, render_history).app(), base_url="http://127.0.0.1:8000")
    browser.cookies.set(KEYS.cookie, KEYS.token)
    page = browser.get("/").text
    assert "<td><bdi>PromptFL + FPL + priors</bdi></td>" in page
    assert "2\u00a0runs" in page and "epsilon 3 at most" in page and "this site wants noise" in page
    assert history.look() is history.look()
    version = browser.get("/state").json()["version"]
    assert browser.get("/state", params={"seen": version}).status_code == 204
    make(runs / "c", "july", [round_line(0)], when=3000)
    assert "july" in browser.get("/state", params={"seen": version}).json()["parts"]["runs"]


def test_names_are_only_text(runs):
    make(runs / "d", "aug", [round_line(0, sites=[NASTY])], when=4000, clients=[{"name": NASTY}])
    seen = History(runs).look()
    parts = render_history(seen, "finished finished finished")
    assert NASTY not in "".join(parts.values()) and "&lt;img" in parts["who"]


def test_what_is_several_runs_and_what_is_one(runs, tmp_path):
    assert folder_of_runs(runs) == runs
    assert folder_of_runs(runs / "a") is None
    (tmp_path / "empty").mkdir()
    assert folder_of_runs(tmp_path / "empty") is None
    home = tmp_path / "federation"
    home.mkdir()
    (home / "settings.toml").write_text("")  # of a package
    working = {"role": "server", "out": str(runs / "a"), "pid": 1, "running": False, "since": 0.0}
    (home / "working.json").write_text(json.dumps(working))
    assert folder_of_runs(home) == runs
    (home / "working.json").write_text(json.dumps({**working, "role": "site", "out": None}))
    assert folder_of_runs(home) == home / "runs"
