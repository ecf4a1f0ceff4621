"""The live report in a real browser, while the run goes on and while its server stops and starts."""

import json
from urllib.parse import urlsplit

import pytest

from chromium import DARK, LIGHT, PHONE, browser, contrasts, overflow, until, visit  # noqa: F401
from fedcopl.watch import LivePage
from free_ports import free_port
from local_page.served import served
from report.sample_results import sample_results, so_far

pytestmark = pytest.mark.browser
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.toml").write_text("")
    return folder


def write_progress(folder, rounds, /, **changes):
    temporary = folder / ".part"
    temporary.write_text(json.dumps(so_far(sample_results(rounds=4, every=2), rounds) | changes))
    temporary.replace(folder / "progress.json")


def watched(folder, **more):
    return served(lambda keys: LivePage(folder, keys).app(), **more)


def wait_for(page, text):
    until(page, "(text) => document.body.innerText.replaceAll('\\u00a0', ' ').includes(text)", text)


def test_a_new_round_appears_without_reloading(folder, visit):  # noqa: F811
    with watched(folder) as keys:
        page = visit(keys.address)
        wait_for(page, "Waiting for the first round")
        write_progress(folder, 1)
        wait_for(page, "Running: round 1 of 4")
        assert page.locator(".accuracies li").count() == 2
        write_progress(folder, 3)
        wait_for(page, "Running: round 3 of 4")
        assert page.locator("#rounds circle.mark").count() >= 3
    assert {urlsplit(request).netloc for request in visit.requests} == {f"127.0.0.1:{keys.port}"}


def test_the_page_survives_a_restart_of_its_server(folder, visit):  # noqa: F811
    write_progress(folder, 1)
    port = free_port()
    with watched(folder, port=port) as keys:
        page = visit(keys.address)
        wait_for(page, "Running: round 1 of 4")
    wait_for(page, "fedcopl watch does not reply; trying again.")
    write_progress(folder, 2)
    with watched(folder, port=port):
        wait_for(page, "Running: round 2 of 4")
        page.wait_for_selector("#connection", state="hidden")
    with watched(folder, port=port, token="another-token"):
        wait_for(page, "fedcopl watch was restarted: open the address that it printed.")
    page.close()
    visit.logs[-1].ignore_error("ERR_CONNECTION_REFUSED")
    visit.logs[-1].ignore_error("403")


def test_an_update_keeps_open_details_scroll_position_and_focus(folder, visit):  # noqa: F811
    write_progress(folder, 1)
    with watched(folder) as keys:
        page = visit(keys.address, PHONE)
        wait_for(page, "Running: round 1 of 4")
        page.click("#research summary")
        page.focus("#research summary >> nth=0")
        page.evaluate("document.querySelector('#result .scroll').scrollLeft = 40")
        write_progress(folder, 2)
        wait_for(page, "Running: round 2 of 4")
        assert page.evaluate("document.querySelector('#research details').open")
        assert page.evaluate("document.activeElement === document.querySelector('#research summary')")
        assert page.evaluate("document.querySelector('#result .scroll').scrollLeft") == 40


def test_markup_in_the_name_of_a_run_is_shown_as_text(folder, visit):  # noqa: F811
    with watched(folder) as keys:
        page = visit.blank()
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.goto(keys.address)
        write_progress(folder, 1, name=NASTY)  # inserted by the script of the page
        wait_for(page, "Running: round 1 of 4")
        assert page.inner_text("h1") == NASTY
        assert page.locator("img").count() == 0


def test_without_scripts_the_page_reloads_itself(folder, visit):  # noqa: F811
    write_progress(folder, 2)
    with watched(folder) as keys:
        page = visit(keys.address, java_script_enabled=False)
        page.wait_for_selector("text=Running: round")
        assert page.locator("noscript meta[http-equiv=refresh], meta[http-equiv=refresh]").count() == 1


@pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_the_page_fits_its_window_and_has_enough_contrast(folder, visit, options):  # noqa: F811
    write_progress(folder, 3)
    with watched(folder) as keys:
        page = visit(keys.address, options)
        wait_for(page, "Running: round 3 of 4")
        assert overflow(page) == 0
        assert [text for text in contrasts(page) if text["ratio"] < 4.5] == []
