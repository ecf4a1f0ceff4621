"""The page of a run in a real browser: it goes on by itself, whatever happens to the run or to the server."""

import json
import shutil
from urllib.parse import urlsplit

import pytest

from chromium import DARK, LIGHT, PHONE, browser, contrasts, overflow, until, visit  # noqa: F401
from fedcopl.config import RunConfig
from fedcopl.watch.feed import Feed
from fedcopl.watch.page import WatchPage, render
from free_ports import free_port
from local_page.run_folder import progress, round_line, write_rounds
from local_page.served import served

pytestmark = pytest.mark.browser
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    begin(folder)
    return folder


def begin(folder, name="try"):
    folder.mkdir()
    (folder / "settings.toml").write_text(RunConfig(name=name, rounds=4).to_toml())


def go_on(folder, rounds):
    lines = [round_line(number) for number in range(rounds)]
    (folder / "progress.json").write_text(json.dumps(progress(lines)))
    write_rounds(folder, lines)


def watched(folder, **more):
    return served(lambda keys: WatchPage(Feed(folder), keys, render).app(), **more)


def wait_for(page, text):
    until(page, "(text) => document.body.innerText.replaceAll('\\u00a0', ' ').includes(text)", text)


def test_a_round_that_is_added_appears_by_itself(folder, visit):  # noqa: F811
    with watched(folder) as keys:
        page = visit(keys.address)
        wait_for(page, "Waiting for the first round")
        go_on(folder, 1)
        wait_for(page, "Running: round 1 of 4")
        assert page.locator("#tiles .number").all_inner_texts() == ["50.0\u00a0%", "1.000", "2", "40"]
        go_on(folder, 3)
        wait_for(page, "Running: round 3 of 4")
        assert page.locator("#curves circle.mark").count() >= 3
        assert page.locator("#counts rect.bar").count() >= 6
        assert page.locator("#clients tbody tr").count() == 2
        (folder / "results.json").write_text(json.dumps(progress([round_line(n) for n in range(4)])))
        go_on(folder, 4)
        wait_for(page, "Finished: all 4 rounds are done.")
    assert {urlsplit(request).netloc for request in visit.requests} == {f"127.0.0.1:{keys.port}"}


def test_the_folder_may_go_and_come_back(folder, visit):  # noqa: F811
    go_on(folder, 2)
    with watched(folder) as keys:
        page = visit(keys.address)
        wait_for(page, "Running: round 2 of 4")
        shutil.rmtree(folder)
        wait_for(page, "The folder is gone.")
        assert page.locator("#curves svg.chart").count() > 0  # what was seen is still shown
        begin(folder, "again")
        go_on(folder, 1)
        wait_for(page, "Running: round 1 of 4")
        assert page.inner_text("h1") == "again"


def test_the_page_survives_a_restart_of_its_server(folder, visit):  # noqa: F811
    go_on(folder, 1)
    port = free_port()
    with watched(folder, port=port) as keys:
        page = visit(keys.address)
        wait_for(page, "Running: round 1 of 4")
    wait_for(page, "fedcopl watch does not answer; trying again.")
    go_on(folder, 2)
    with watched(folder, port=port):
        wait_for(page, "Running: round 2 of 4")
        page.wait_for_selector("#connection", state="hidden")
    with watched(folder, port=port, token="another-token"):
        wait_for(page, "fedcopl watch was started anew: open the address that it printed.")
    page.close()
    visit.visitors[-1].forgive("ERR_CONNECTION_REFUSED")
    visit.visitors[-1].forgive("403")


def test_what_the_reader_did_is_kept(folder, visit):  # noqa: F811
    go_on(folder, 1)
    with watched(folder) as keys:
        page = visit(keys.address, PHONE)
        wait_for(page, "Running: round 1 of 4")
        page.focus("#counts .scroll")
        page.evaluate("document.querySelector('#clients .scroll').scrollLeft = 40")
        go_on(folder, 2)
        wait_for(page, "Running: round 2 of 4")
        assert page.evaluate("document.activeElement === document.querySelector('#counts .scroll')")
        assert page.evaluate("document.querySelector('#clients .scroll').scrollLeft") == 40


def test_nasty_names_do_nothing(folder, visit):  # noqa: F811
    line = round_line(0, sites=[NASTY], dropped={NASTY: NASTY})
    (folder / "progress.json").write_text(json.dumps(progress([line], names=(NASTY, "b"), classes=(NASTY, "b"))))
    with watched(folder) as keys:
        page = visit.blank()
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.goto(keys.address)
        write_rounds(folder, [line])  # once as part of the page, once put in by the script
        wait_for(page, "Running: round 1 of 4")
        assert page.inner_text("#log b") == NASTY
        assert page.locator("img").count() == 0


def test_without_scripts_it_is_a_page_all_the_same(folder, visit):  # noqa: F811
    go_on(folder, 2)
    with watched(folder) as keys:
        page = visit(keys.address, java_script_enabled=False)
        page.wait_for_selector("text=Running: round")
        assert page.locator("noscript meta[http-equiv=refresh], meta[http-equiv=refresh]").count() == 1


CLIPPED = """() => [...document.querySelectorAll('svg.chart')].flatMap((chart) => {
    const room = chart.getBoundingClientRect();
    return [...chart.querySelectorAll('text')].filter((text) => {
        const box = text.getBoundingClientRect();
        return box.left < room.left - 0.5 || box.right > room.right + 0.5;
    }).map((text) => text.textContent);
})"""


@pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_it_fits_and_can_be_read(folder, visit, options):  # noqa: F811
    go_on(folder, 3)
    lines = [
        round_line(n, loss=1.2e8 * n, examples=98_765_432 + n, sites=["north"], dropped={"south": "too late, again"})
        for n in range(3)
    ]
    write_rounds(folder, lines)
    with watched(folder) as keys:
        page = visit(keys.address, options)
        wait_for(page, "Running: round 3 of 4")
        assert overflow(page) == 0
        assert page.evaluate(CLIPPED) == []  # nor on the axes: 200,000,000 needs room
        assert [text for text in contrasts(page) if text["ratio"] < 4.5] == []
