"""The live report, requested by an HTTP client while the run folder changes."""

import json
import os
import shutil

import pytest
from starlette.testclient import TestClient

from fedcopl.algorithm.accuracy_from_sample import AccuracyEstimate
from fedcopl.local_page.access import Keys
from fedcopl.report.label_free import write_review
from fedcopl.watch import _SILENT_ROUNDS, _SILENT_SECONDS, LivePage, _runs_folder
from report.sample_results import sample_results, so_far, write_run

KEYS = Keys("secret-token", 8000)
ADDRESS = "http://127.0.0.1:8000"
NASTY = "<img src=x onerror=alert(1)>"


def browser_of(folder):
    client = TestClient(LivePage(folder, KEYS).app(), base_url=ADDRESS)
    client.cookies.set(KEYS.cookie, KEYS.token)
    return client


def text_of(browser):
    return browser.get("/").text.replace("\N{NO-BREAK SPACE}", " ")


def write_progress(folder, rounds, /, **changes):
    (folder / "progress.json").write_text(json.dumps(so_far(sample_results(rounds=4), rounds) | changes))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.toml").write_text("rounds = 4\n")
    return folder


def test_before_during_and_after_a_run(folder):
    browser = browser_of(folder)
    assert "Waiting for the first round to end." in text_of(browser)
    write_progress(folder, 1)
    page = text_of(browser)
    assert "Running: round 1 of 4 is done, about 12 s left." in page  # three rounds of 4.1 s
    assert '<progress max="4" value="1"' in page and "<svg" in page
    (folder / "progress.json").unlink()
    (folder / "results.json").write_text(json.dumps(sample_results(rounds=4)))
    assert "Finished: 4 rounds done, 16 s." in text_of(browser)


def test_a_converged_run_is_finished(folder):
    results = so_far(sample_results(rounds=4), 3)
    results["rounds"][-1]["converged"] = True
    (folder / "results.json").write_text(json.dumps(results))
    page = text_of(browser_of(folder))
    assert "Finished: 3 rounds of 4; training no longer improved" in page and '<progress max="3" value="3"' in page


def test_a_review_appears_on_the_page(folder):
    (folder / "results.json").write_text(json.dumps(sample_results(rounds=4, labelled=False)))
    browser = browser_of(folder)
    assert "reviewed" not in text_of(browser)
    write_review(folder, "client-1", AccuracyEstimate(0.9, 0.71, 0.97, 20, 18))
    assert "20 images reviewed" in text_of(browser)


def test_a_page_is_sent_only_if_it_changed(folder):
    write_progress(folder, 1)
    browser = browser_of(folder)
    version = browser.get("/").text.split('data-version="')[1].split('"')[0]
    assert browser.get("/", params={"seen": version}).status_code == 204
    write_progress(folder, 2)
    assert browser.get("/", params={"seen": version}).status_code == 200


def test_the_run_folder_is_not_changed(folder):
    write_progress(folder, 1)
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}
    browser_of(folder).get("/")
    assert {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()} == before


def test_a_missing_folder_is_reported_until_it_exists_again(folder):
    write_progress(folder, 2)
    browser = browser_of(folder)
    text_of(browser)
    folder.rename(folder.with_name("away"))
    page = text_of(browser)
    assert (
        "there is no such folder; name the folder of a run. The page shows the last readable state." in page
        and "<svg" in page
    )
    folder.with_name("away").rename(folder)
    assert "Running: round 2 of 4" in text_of(browser)
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "settings.toml").write_text("")
    assert "Waiting for the first round" in text_of(browser)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\0", b"[1, 2]", b'{"a": ', b"null", b"[" * 100_000])
def test_a_damaged_file_is_named(folder, content):
    write_progress(folder, 1)
    browser = browser_of(folder)
    text_of(browser)
    (folder / "progress.json").write_bytes(content)
    page = browser.get("/")
    assert page.status_code == 200 and "progress.json: is damaged" in page.text and "<svg" in page.text


def test_the_reason_of_an_early_stop_is_shown(folder):
    write_progress(folder, 1)
    (folder / "ended.txt").write_text("round 3, step Unmask: <b>clinic</b> refused\n")
    assert "Stopped early: round 3, step Unmask: &lt;b&gt;clinic&lt;/b&gt; refused." in text_of(browser_of(folder))


@pytest.mark.parametrize(("round_seconds", "limit"), [(1.0, _SILENT_SECONDS), (100.0, _SILENT_ROUNDS * 100.0)])
def test_a_warning_appears_when_a_round_takes_unusually_long(folder, monkeypatch, round_seconds, limit):
    rounds = so_far(sample_results(rounds=4), 2)["rounds"]
    write_progress(folder, 2, rounds=[record | {"seconds": round_seconds * (n + 1)} for n, record in enumerate(rounds)])
    changed = os.stat(folder / "progress.json").st_mtime
    for later, text in ((limit - 1, "Running: round 2"), (limit + 1, "Check that the process is running.")):
        monkeypatch.setattr("fedcopl.watch.time.time", lambda later=later: changed + later)
        assert text in text_of(browser_of(folder))


def test_missing_clients_are_in_the_table_of_clients(folder):
    rounds = so_far(sample_results(rounds=4), 2)["rounds"]
    sites = [f"client-{n}" for n in range(5)]
    rounds[0] |= {"sites": sites}
    rounds[1] |= {"sites": sites[:3], "dropped": {"client-3": "no reply in time"}}
    write_progress(folder, 2, rounds=rounds)
    page = text_of(browser_of(folder))
    assert '<td>1 of 2</td><td class="text bad">reply not used: no reply in time</td>' in page
    assert '<td>1 of 2</td><td class="text bad">absent</td>' in page
    assert '<td>2 of 2</td><td class="text">took part</td>' in page
    assert "Missing in round 2: client-3, client-4." in page


def test_several_runs_are_compared_and_new_ones_appear(tmp_path):
    runs = tmp_path / "runs"
    write_run(runs / "a", sample_results())
    browser = browser_of(runs)
    assert "Finished: 10 rounds" in text_of(browser)  # one run: its report
    write_run(runs / "b", so_far(sample_results(settings={"method": "promptfl"}), 3), "progress.json")
    (runs / "c").mkdir()
    (runs / "c/settings.toml").write_text("")  # no finished round yet
    page = text_of(browser)
    assert "2 runs: 1 finished, 1 running." in page and "FedCoPL comparison" in page


def test_the_folder_of_a_server_or_a_site_shows_its_runs(tmp_path):
    home, runs = tmp_path / "federation", tmp_path / "runs"
    home.mkdir()
    assert _runs_folder(home) == home
    working = {"role": "server", "out": str(runs / "a"), "pid": 1, "running": False, "since": 0.0}
    (home / "working.json").write_text(json.dumps(working))
    assert _runs_folder(home) == runs
    (home / "working.json").write_text(json.dumps({**working, "role": "site", "out": None}))
    assert _runs_folder(home) == home / "runs"


def test_only_get_requests_are_allowed(folder):
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert browser_of(folder).request(method, "/", headers={"origin": ADDRESS}).status_code == 405


def test_requests_need_the_token_and_get_no_other_files(folder):
    without_token = TestClient(LivePage(folder, KEYS).app(), base_url=ADDRESS)
    assert {without_token.get(path).status_code for path in ("/", "/static/live.js")} == {403}
    for path in ("/settings.toml", "/static/..%2fwatch.py", "/static/review.js", "/..%2fsettings.toml"):
        assert browser_of(folder).get(path).status_code == 404


def test_scripts_come_from_this_server_only(folder):
    write_progress(folder, 1)
    policy = browser_of(folder).get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy


def test_names_are_escaped(folder):
    write_progress(folder, 1, name=NASTY, classes=[NASTY, *sample_results()["classes"][1:]])
    page = text_of(browser_of(folder))
    assert NASTY not in page and "&lt;img src=x" in page
    surrogate = browser_of(folder)
    write_progress(folder, 1, name="caf\udce9")
    assert "caf\\udce9" in text_of(surrogate)
