"""The live report in a real browser: it follows the run, whatever happens to the run or to the server."""

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


def go_on(folder, rounds, /, **changes):
    temporary = folder / ".part"
    temporary.write_text(json.dumps(so_far(sample_results(rounds=4, every=2), rounds) | changes))
    temporary.replace(folder / "progress.json")


def watched(folder, **more):
    return served(lambda keys: LivePage(folder, keys).app(), **more)


def wait_for(page, text):
    until(page, "(text) => document.body.innerText.replaceAll('\\u00a0', ' ').includes(text)", text)


def test_a_new_round_appears_by_itself(folder, visit):  # noqa: F811
    with watched(folder) as keys:
        page = visit(keys.address)
        wait_for(page, "Waiting for the first round")
        go_on(folder, 1)
        wait_for(page, "Running: round 1 of 4")
        assert page.locator(".moments li").count() == 2
        go_on(folder, 3)
        wait_for(page, "Running: round 3 of 4")
        assert page.locator("#rounds circle.mark").count() >= 3
    assert {urlsplit(request).netloc for request in visit.requests} == {f"127.0.0.1:{keys.port}"}


def test_the_page_survives_a_restart_of_its_server(folder, visit):  # noqa: F811
    go_on(folder, 1)
    port = free_port()
    with watched(folder, port=port) as keys:
        page = visit(keys.address)
        wait_for(page, "Running: round 1 of 4")
    wait_for(page, "fedcopl watch does not reply; trying again.")
    go_on(folder, 2)
    with watched(folder, port=port):
        wait_for(page, "Running: round 2 of 4")
        page.wait_for_selector("#connection", state="hidden")
    with watched(folder, port=port, token="another-token"):
        wait_for(page, "fedcopl watch was restarted: open the address that it printed.")
    page.close()
    visit.visitors[-1].forgive("ERR_CONNECTION_REFUSED")
    visit.visitors[-1].forgive("403")


def test_what_the_reader_opened_scrolled_and_focused_is_kept(folder, visit):  # noqa: F811
    go_on(folder, 1)
    with watched(folder) as keys:
        page = visit(keys.address, PHONE)
        wait_for(page, "Running: round 1 of 4")
        page.click("#research summary")
        page.focus("#research summary >> nth=0")
        page.evaluate("document.querySelector('#result .scroll').scrollLeft = 40")
        go_on(folder, 2)
        wait_for(page, "Running: round 2 of 4")
        assert page.evaluate("document.querySelector('#research details').open")
        assert page.evaluate("document.activeElement === document.querySelector('#research summary')")
        assert page.evaluate("document.querySelector('#result .scroll').scrollLeft") == 40


def test_nasty_names_do_nothing(folder, visit):  # noqa: F811
    with watched(folder) as keys:
        page = visit.blank()
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.goto(keys.address)
        go_on(folder, 1, name=NASTY)  # put in by the script
        wait_for(page, "Running: round 1 of 4")
        assert page.inner_text("h1") == NASTY
        assert page.locator("img").count() == 0


def test_without_scripts_the_page_reloads_itself(folder, visit):  # noqa: F811
    go_on(folder, 2)
    with watched(folder) as keys:
        page = visit(keys.address, java_script_enabled=False)
        page.wait_for_selector("text=Running: round")
        assert page.locator("noscript meta[http-equiv=refresh], meta[http-equiv=refresh]").count() == 1


@pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_it_fits_and_can_be_read(folder, visit, options):  # noqa: F811
    go_on(folder, 3)
    with watched(folder) as keys:
        page = visit(keys.address, options)
        wait_for(page, "Running: round 3 of 4")
        assert overflow(page) == 0
        assert [text for text in contrasts(page) if text["ratio"] < 4.5] == []
