"""Both pages in a real Chromium: they render, complain of nothing, and can be read everywhere."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chromium import DARK, LIGHT, PHONE, browser, contrasts, overflow, until, visit  # noqa: F401
from fedcopl.report.comparison import ComparedRun, render_comparison
from fedcopl.report.gallery import ChosenImages, gallery
from fedcopl.report.run_page import _render
from report.sample_results import DIGITS, outcome_of, sample_results, so_far

pytestmark = pytest.mark.browser

NASTY = "<script>document.title='broken'</script>"
HOSTILE = (
    NASTY,
    "an-unreasonably-" + "long-" * 30 + "name",
    "Ünïcødé 猫 🐈 \u202eright to left",
    '" onmouseover="x',
    "{{ 7 * 7 }}",
)
METHODS = ("fedcopl", "fedvpt", "promptfl")
LEGIBLE = 4.5  # the least contrast of text, WCAG AA


@dataclass(frozen=True)
class Made:
    """A page, what it is headed with, and how many charts of lines it has."""

    path: Path
    heading: str
    charts: int


def pictures(classes, clients):
    images = [Image.effect_noise((40, 40), 90)] * (2 * classes)
    index = np.arange(2 * classes)
    return gallery(
        images,
        index % classes,
        [str(c) for c in range(classes)],
        [ChosenImages(clients[0]["name"], index, index % classes, -index / 99)],
    )


def crowded(name="crowded", **settings):
    """Fifty clients, two hundred classes, and names that nobody would choose."""
    classes = tuple(HOSTILE[n] if n < len(HOSTILE) else f"class {n}" for n in range(200))
    results = sample_results(clients=50, classes=classes, rounds=45, every=5, name=name, settings=settings)
    for client, name_of_client in zip(results["clients"], HOSTILE, strict=False):
        client["name"] = name_of_client
    return results


def one_page(folder, results):
    path = folder / f"{len(results['classes'])}.html"
    html = _render(outcome_of(results), pictures(len(results["classes"]), results["clients"]))
    path.write_text(html, encoding="utf-8", errors="backslashreplace")
    return path


def comparison_page(folder, name, outcomes):
    path = folder / f"{name}.html"
    runs = [ComparedRun(Path(f"runs/{n}"), outcome_of(results)) for n, results in enumerate(outcomes)]
    path.write_text(render_comparison(runs), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    few = [sample_results(seed=seed, settings={"method": method}) for method in METHODS for seed in (1, 2)]
    for results in few:
        results["rounds"][-1]["macro"] += METHODS.index(results["settings"]["method"]) / 100
    many = [
        crowded(name, data={"beta": n, "clients": 50}) | {"method": name} for n, name in enumerate(HOSTILE[2:], start=1)
    ]
    many[2] = so_far(many[2], 7)
    return {
        "run": Made(one_page(folder, sample_results()), "demo", 8),
        "crowded run": Made(one_page(folder, crowded(NASTY)), NASTY, 8),
        "comparison": Made(comparison_page(folder, "few", few), "fedcopl · fedvpt · promptfl", 11),
        "crowded comparison": Made(comparison_page(folder, "many", many), "Ünïcødé 猫", 11),
    }


CROWDED = [pytest.param(name, marks=pytest.mark.slow) for name in ("crowded run", "crowded comparison")]


@pytest.fixture(params=["run", "comparison", *CROWDED])
def made(request, pages):
    return pages[request.param]


@pytest.fixture(params=["run", "comparison"])
def usual(request, pages):
    return pages[request.param]


NUMBERS = """
() => [...document.querySelectorAll('main svg.chart')].map((chart) => {
  const view = chart.viewBox.baseVal;
  const points = [...chart.querySelectorAll('polyline')].map((line) => [...line.points].map((p) => [p.x, p.y]));
  const inside = ([x, y]) => x >= 0 && x <= view.width && y >= 0 && y <= view.height;
  const {width, height} = chart.getBoundingClientRect();
  return {points: points.map((line) => line.length), inside: points.flat().every(inside), width, height};
})
"""
ATTRIBUTES = """
() => [...document.querySelectorAll('main svg *')].flatMap((element) =>
  [...element.attributes]
    .filter((a) => ['x', 'y', 'x1', 'x2', 'y1', 'y2', 'cx', 'cy', 'width', 'height'].includes(a.name))
    .filter((a) => !Number.isFinite(Number(a.value)) || (['width', 'height'].includes(a.name) && Number(a.value) < 0))
    .map((a) => `${element.tagName} ${a.name}=${a.value}`))
"""


SPILLED = """
() => [...document.querySelectorAll('main svg.chart')].flatMap((chart) => {
  const room = chart.getBoundingClientRect();
  return [...chart.querySelectorAll('text')].filter((t) => {
    const box = t.getBoundingClientRect();
    return box.left < room.left - 1 || box.right > room.right + 1;
  }).map((t) => t.textContent);
})
"""


@pytest.mark.parametrize("options", [LIGHT, PHONE], ids=["desktop", "phone"])
def test_the_report_renders_and_loads_nothing(visit, made, options):  # noqa: F811
    page = visit(made.path, options)
    assert page.locator("h1").inner_text().startswith(made.heading)
    assert page.title() != "broken"
    assert page.evaluate("document.scripts.length") == 0
    asked = [address for address in visit.requests if not address.startswith("data:")]
    assert asked == [made.path.as_uri()]

    assert page.evaluate(ATTRIBUTES) == []
    assert overflow(page) == 0
    page.locator("details").evaluate_all("all => all.forEach((one) => one.open = true)")
    drawn = page.evaluate(NUMBERS)
    assert len(drawn) == made.charts
    for chart in drawn:
        assert chart["points"]
        assert min(chart["points"]) >= 1
        assert chart["inside"]
        assert chart["width"] > 200
        assert chart["height"] > 100
    assert page.evaluate(SPILLED) == []
    assert overflow(page) == 0


def test_bars_and_heat_maps_have_data(visit, pages):  # noqa: F811
    page = visit(pages["run"].path)
    recall, balance = page.locator("svg.bars").all()
    assert balance.locator("rect.bar").count() == 3 * len(DIGITS)
    assert recall.locator("rect.bar").count() == 2 * len(DIGITS)
    assert page.locator(".heat-map").count() == 5
    shades = page.locator(".heat tbody td").evaluate_all(
        "cells => new Set(cells.map(c => getComputedStyle(c).backgroundColor)).size"
    )
    assert shades > 8
    pictures = page.locator(".gallery img").evaluate_all("images => images.map((i) => i.naturalWidth)")
    assert pictures
    assert min(pictures) == 40


def test_every_link_leads_to_its_part(visit, usual):  # noqa: F811
    page = visit(usual.path)
    links = page.locator("nav a").all()
    assert len(links) >= 5
    for link in links:
        link.click()
        target = link.get_attribute("href")
        assert page.evaluate("location.hash") == target
        top = page.locator(target).evaluate("e => e.getBoundingClientRect().top")
        at_the_end = page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert -1 <= top <= 40 or at_the_end


@pytest.mark.parametrize("options", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_contrast_in_light_and_dark_mode(visit, usual, options):  # noqa: F811
    page = visit(usual.path, options)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", ground)[:3]))
    assert brightness > 600 if options is LIGHT else brightness < 100
    page.locator("details").evaluate_all("all => all.forEach((one) => one.open = true)")
    written = contrasts(page)
    assert len(written) > 200
    assert [text for text in written if text["ratio"] < LEGIBLE] == []


def test_the_printed_report_is_complete(visit, usual):  # noqa: F811
    page = visit(usual.path, DARK)  # who reads by night prints on white paper all the same
    page.emulate_media(media="print", color_scheme="light")
    assert [text for text in contrasts(page) if text["ratio"] < LEGIBLE] == []
    assert not page.locator("nav").is_visible()
    folded = page.locator("section > details :is(table, dl):not(figure > details *)")
    assert folded.count() >= 1
    assert all(box["height"] > 20 for box in (table.bounding_box() for table in folded.all()))
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_the_keyboard_reaches_everything_that_scrolls_or_opens(visit, usual):  # noqa: F811
    page = visit(usual.path, PHONE)
    wanted = page.locator("nav a, .scroll:visible, summary:visible, pre:visible").count()
    reached = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "[...document.querySelectorAll('nav a, .scroll, summary, pre')].indexOf(document.activeElement)"
        )
        if focused >= 0:
            reached.add(focused)
            ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert ring == "solid"
    assert len(reached) == wanted


def test_a_wide_table_scrolls_by_key(visit, usual):  # noqa: F811
    page = visit(usual.path, PHONE)
    box = page.locator("section .scroll:visible").filter(has=page.locator("table")).first
    box.focus()
    page.keyboard.press("ArrowRight")
    until(page, "document.activeElement.scrollLeft > 0")


def test_a_fold_opens_by_key(visit, usual):  # noqa: F811
    page = visit(usual.path)
    fold = page.locator("details").first
    assert not fold.locator("table, pre").first.is_visible()
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.locator("table, pre").first.is_visible()


def test_charts_and_tables_have_names_for_a_screen_reader(visit, usual):  # noqa: F811
    page = visit(usual.path)
    page.locator("details").evaluate_all("all => all.forEach((one) => one.open = true)")
    charts = page.get_by_role("img", name=re.compile("from .* to "))
    assert charts.count() == usual.charts
    regions = page.get_by_role("region")
    assert regions.count() >= page.locator("main section").count()
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.get_by_role("navigation", name="Sections").count() == 1
    assert page.get_by_role("columnheader").count() > 10
    assert page.get_by_role("rowheader").count() > 10


def test_the_best_number_is_named_for_screen_readers(visit, pages):  # noqa: F811
    page = visit(pages["comparison"].path)
    assert page.get_by_role("cell", name=re.compile(r"\(best\)$")).count() == 2  # macro and gain
    assert page.get_by_role("cell", name=re.compile(r"\(second best\)$")).count() == 2


def test_the_report_works_without_scripts(visit, usual):  # noqa: F811
    page = visit(usual.path, java_script_enabled=False)
    assert page.locator("h1").inner_text().startswith(usual.heading)
    assert page.locator("svg.chart").count() == usual.charts
