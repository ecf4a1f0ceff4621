"""The page of a run, asked as a browser asks."""

import json

import pytest
from starlette.testclient import TestClient

from fedcopl.config import RunConfig
from fedcopl.local_page.access import Keys
from fedcopl.report.curves import chosen_share, unchanged_share
from fedcopl.run.record import Outcome, RoundRecord
from fedcopl.watch.feed import Feed, Snapshot
from fedcopl.watch.page import MOST_CLIENTS, WatchPage, log_lines, render, seconds_left, watched_clients
from local_page.run_folder import progress, round_line, write_rounds

KEYS = Keys("secret-token", 8000)
OURS = "http://127.0.0.1:8000"
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.toml").write_text(RunConfig(name="try", rounds=4).to_toml())
    return folder


@pytest.fixture
def browser(folder):
    client = TestClient(WatchPage(Feed(folder), KEYS, render).app(), base_url=OURS)
    client.cookies.set(KEYS.cookie, KEYS.token)
    return client


def test_the_page_before_and_after_a_round(browser, folder):
    assert "Waiting for the first round to end." in browser.get("/").text
    write_rounds(folder, [round_line(0)])
    page = browser.get("/").text
    assert "Running: round 1 of 4 is done." in page
    assert "<svg" in page
    assert "about 9.0\u00a0s left" in page  # three rounds of three seconds
    so_far = progress([round_line(0)]) | {"method": "PromptFL + FPL + priors"}
    (folder / "progress.json").write_text(json.dumps(so_far))
    assert "<b><bdi>PromptFL + FPL + priors</bdi></b>" in browser.get("/").text


def test_news_only_when_there_are_some(browser, folder):
    first = browser.get("/state").json()
    assert browser.get("/state", params={"seen": first["version"]}).status_code == 204
    write_rounds(folder, [round_line(0)])
    news = browser.get("/state", params={"seen": first["version"]})
    assert news.status_code == 200
    assert "round 1 of 4" in news.json()["parts"]["head"]
    assert news.json()["version"] != first["version"]


def test_a_folder_that_is_gone_is_said_to_be(browser, folder):
    write_rounds(folder, [round_line(0)])
    browser.get("/")
    folder.rename(folder.with_name("away"))
    assert "The folder is gone." in browser.get("/").text
    folder.with_name("away").rename(folder)
    assert "Running: round 1" in browser.get("/").text


def test_it_only_reads(browser):
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for path in ("/", "/state", "/anything"):
            assert browser.request(method, path, headers={"origin": OURS}).status_code == 405


def test_nobody_else_sees_it(folder):
    stranger = TestClient(WatchPage(Feed(folder), KEYS, render).app(), base_url=OURS)
    for path in ("/", "/state", "/static/watch.js"):
        assert stranger.get(path).status_code == 403


def test_no_way_to_a_file(browser):
    for path in ("/settings.toml", "/static/..%2ffeed.py", "/static/review.js", "/..%2fsettings.toml"):
        assert browser.get(path).status_code == 404


def test_nasty_names_are_only_text(browser, folder):
    (folder / "settings.toml").write_text(f'name = "{NASTY}"\nrounds = 4\n')
    line = round_line(0, dropped={NASTY: NASTY}, sites=[NASTY])
    write_rounds(folder, [line])
    (folder / "progress.json").write_text(
        json.dumps(progress([line], names=(NASTY, "{{ 7 * 7 }}"), classes=(NASTY, "b")))
    )
    page = browser.get("/").text
    assert NASTY not in page
    assert "&lt;img src=x" in page
    assert "{{ 7 * 7 }}" in page
    assert NASTY not in "".join(browser.get("/state").json()["parts"].values())


def snapshot(*rounds, clients=("a", "b", "c"), **more):
    return Snapshot(Outcome(name="x", rounds=rounds), clients, planned=10, **more)


def played(number, **more):
    """The record of a round, counted from 1."""
    return RoundRecord(round=number - 1, **more)


def test_who_is_here_and_who_is_late():
    rounds = (
        played(1, sites=("a", "b", "c")),
        played(2, sites=("a", "b"), dropped={"c": "no answer in time"}),
        played(3, sites=("a",), dropped={"c": "no answer in time"}, clients=(0.5, None, 0.25)),
    )
    rows = {row.name: row for row in watched_clients(snapshot(*rounds))}
    assert list(rows) == ["c", "b", "a"]  # those with troubles first
    assert [(row.state, row.last, row.taken, row.dropped) for row in rows.values()] == [
        ("dropped", 1, 1, 2),
        ("away", 2, 2, 0),
        ("here", 3, 3, 0),
    ]
    assert rows["c"].why == "no answer in time"
    assert (rows["a"].accuracy, rows["b"].accuracy, rows["c"].accuracy) == (0.5, None, 0.25)


def test_where_nobody_tells_who_took_part():
    [row, *_] = watched_clients(snapshot(played(1, participants=2, clients=(0.5,))))
    assert (row.state, row.accuracy) == ("", None)  # one number for three clients says nothing about any of them
    assert watched_clients(snapshot()) != []


def test_the_log_is_the_last_first():
    lines = list(log_lines((played(1, dropped={"a": "late"}), played(2, kept_old_prompt=True), played(3))))
    assert [(round, who) for round, who, _ in lines] == [(2, "server"), (1, "a")]
    assert lines[1][2] == "its answer was not used: late"


def test_why_a_federation_ended_is_said_at_once(folder):
    write_rounds(folder, [round_line(0)])
    (folder / "ended.txt").write_text("round 3, step Unmask: <b>clinic</b> refused\n")
    seen = Feed(folder).look()
    assert seen.state(seen.changed) == "ended"
    shown = render(seen, "ended")["head"]
    assert "Ended before its time: <bdi>round 3, step Unmask: &lt;b&gt;clinic&lt;/b&gt; refused</bdi>" in shown
    (folder / "ended.txt").unlink()
    assert Feed(folder).look().state(seen.changed) == "running"


def test_how_long_it_still_takes():
    rounds = (played(1, seconds=4.0), played(2, seconds=10.0))
    assert seconds_left(snapshot(*rounds)) == 8 * 5.0  # eight rounds of the median of 4 and 6 seconds
    assert seconds_left(snapshot()) is None


def test_what_refreshes_did_is_shown_without_any_truth(folder):
    counts = {"images": 100, "chosen": 20, "compared": 50, "unchanged": 45}
    write_rounds(
        folder, [round_line(0, labelling={**counts, "compared": 0}), round_line(1), round_line(2, labelling=counts)]
    )
    seen = Feed(folder).look()
    rounds = seen.outcome.rounds
    assert [chosen_share(record) for record in rounds] == [0.2, None, 0.2]
    assert [unchanged_share(record) for record in rounds] == [None, None, 0.9]
    parts = render(seen, "running")
    assert "20.0\u00a0% of all images" in parts["tiles"].replace("\u202f", "\u00a0")
    assert "Labels as before" in parts["tiles"]
    assert "What refreshes changed" in parts["curves"]
    assert "Labels as before" not in render(snapshot(*rounds[:2]), "running")["tiles"]


def test_a_thousand_clients_and_rounds_are_shown_in_part():
    names = tuple(f"client-{n:04}" for n in range(1000))
    rounds = tuple(played(n + 1, sites=names, loss=1.0, seconds=float(n)) for n in range(1000))
    parts = render(snapshot(*rounds, clients=names), "running")
    assert parts["clients"].count("<tr>") == MOST_CLIENTS + 1
    assert "and 800 more" in parts["clients"]


def test_every_state_has_its_words():
    heads = {
        state: render(snapshot(played(1)), state)["head"]
        for state in ("finished", "gone", "waiting", "silent", "running")
    }
    assert len(set(heads.values())) == 5
    assert "Is the run still going?" in heads["silent"]
