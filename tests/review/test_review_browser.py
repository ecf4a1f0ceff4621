"""The review page in a real browser: by keyboard, by finger, in the dark."""

from urllib.parse import urlsplit

import pytest

from chromium import DARK, LIGHT, PHONE, browser, contrasts, overflow, until, visit  # noqa: F401
from fedcopl.review.expert_answers import Answers
from fedcopl.review.images import open_gallery
from fedcopl.review.page import ReviewPage
from fedcopl.review.sample_survey import SAMPLE, SampleSurvey
from local_page.run_folder import NASTY, make_run
from local_page.served import served

pytestmark = pytest.mark.browser
PAINTED = """new Promise((painted) => new PerformanceObserver((seen) => seen.getEntries().length && painted())
    .observe({type: "paint", buffered: true}))"""
CLASSES = ("cat", "dog", "small dog", "horse", "<script>alert(5)</script>", '" onfocus="alert(6)')


@pytest.fixture
def review(tmp_path, monkeypatch):
    """The survey, and the address of its page."""
    monkeypatch.setattr("fedcopl.review.page._PER_PAGE", 8)
    names = NASTY + [f"{number:03}.png" for number in range(12)]
    make_run(tmp_path / "run", names, CLASSES, client="site <b>one</b>", refreshes=(0, 2, 4))
    survey = SampleSurvey(open_gallery(tmp_path / "run", None), Answers(tmp_path / "run", "site"))
    with served(lambda keys: ReviewPage(survey, keys).app()) as keys:
        yield survey, keys


def enter(visit, keys, options=LIGHT, **more):  # noqa: F811
    page = visit(keys.address, options, **more)
    page.wait_for_selector("#image")
    return page


def press(page, key):
    """A key that leads to another page. Chromium throws keys away before a page is painted, so wait for that."""
    page.evaluate(PAINTED)
    with page.expect_navigation():
        page.keyboard.press(key)


def shown(page):
    return page.inner_text("figcaption bdi")


def said(survey):
    return [(answer.image, answer.kind, answer.label) for answer in survey.answers.current().values()]


def test_labelling_by_keyboard(review, visit):  # noqa: F811
    survey, keys = review
    page = enter(visit, keys)
    assert "token" not in page.url
    order = survey.numbers(SAMPLE)
    names = [survey.gallery.names[number] for number in order]
    predicted = [survey.gallery.classes[survey.gallery.predictions.label[number]] for number in order]
    second = survey.gallery.classes[survey.gallery.predictions.top[order[2]][1]]
    for key in ("Enter", " ", "2", "0", "?"):
        press(page, key)
    page.keyboard.type("hor")
    assert page.input_value("#text") == "hor"
    press(page, "Enter")
    assert said(survey) == [
        (names[0], "class", predicted[0]),
        (names[1], "class", predicted[1]),
        (names[2], "class", second),
        (names[3], "none", None),
        (names[4], "unclear", None),
        (names[5], "class", "horse"),
    ]
    assert "Saved:" in page.inner_text(".saved")
    assert "From 5 images of the random sample" in page.inner_text(".estimate").replace("\u00a0", " ")


def test_undo_and_navigation_by_keyboard(review, visit):  # noqa: F811
    survey, keys = review
    page = enter(visit, keys)
    first = shown(page)
    press(page, "Enter")
    press(page, "Enter")
    press(page, "Backspace")
    press(page, "Backspace")
    assert shown(page) == first
    assert said(survey) == []
    press(page, "ArrowRight")
    assert shown(page) != first
    press(page, "ArrowLeft")
    assert shown(page) == first
    press(page, "PageDown")
    assert page.inner_text("#strip small").replace("\u00a0", " ") == "9 to 16 of 20"
    press(page, "PageUp")
    assert said(survey) == []


def test_a_repeating_key_answers_once(review, visit):  # noqa: F811
    survey, keys = review
    page = enter(visit, keys)
    with page.expect_navigation():
        page.evaluate(
            "for (const repeat of [false, true, true])"
            " document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', repeat, bubbles: true}))"
        )
    assert len(said(survey)) == 1


def test_keys_in_the_search_box_are_only_text(review, visit):  # noqa: F811
    survey, keys = review
    page = enter(visit, keys)
    page.focus("#text")
    page.keyboard.type("1 0?")
    assert page.input_value("#text") == "1 0?"
    page.keyboard.press("Escape")
    assert page.input_value("#text") == ""
    assert said(survey) == []
    page.keyboard.type("do")
    press(page, "Enter")  # two classes have "do" in their names, but only one begins with it
    assert said(survey)[0][2] == "dog"


def test_every_control_is_reached_by_tab_and_shows_it(review, visit):  # noqa: F811
    _, keys = review
    page = enter(visit, keys)
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", reached[-1]
    assert {"text", "next"} <= set(reached)
    assert any("None of the classes" in name for name in reached)
    # Enter on a focused link follows the link, and answers nothing
    page.focus("text=Most confident first")
    press(page, "Enter")
    assert "order=sure" in page.url
    assert said(review[0]) == []


def test_by_mouse_through_orders_and_classes(review, visit):  # noqa: F811
    survey, keys = review
    page = enter(visit, keys)
    most = int(survey.class_sizes.argmax())
    with page.expect_navigation():
        page.click("text=Least confident first")
    with page.expect_navigation():
        page.select_option("#class", str(most))
    assert page.inner_text("#question") == f"Is this {survey.gallery.classes[most]}?"
    with page.expect_navigation():
        page.click(".thumb >> nth=2")
    assert page.get_attribute(".thumb >> nth=2", "aria-current") == "true"
    with page.expect_navigation():
        page.click("text=None of the classes")
    assert [(kind, label) for _, kind, label in said(survey)] == [("none", None)]
    with page.expect_navigation():
        page.click("#undo button")
    assert said(survey) == []


def test_markup_in_names_is_not_executed(review, visit):  # noqa: F811
    survey, keys = review
    page = visit.blank()
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page.goto(keys.address)
    page.wait_for_selector("#image")
    assert page.inner_text("h1") == "site <b>one</b>"
    for nasty in NASTY:
        number = survey.gallery.names.index(nasty)
        at = survey.numbers("sure").tolist().index(number)
        page.goto(f"http://127.0.0.1:{keys.port}/?order=sure&at={at}")
        assert page.text_content("figcaption bdi") == nasty
        assert page.evaluate("document.getElementById('image').naturalWidth") > 0
    assert page.evaluate("document.scripts.length") == 1
    assert {urlsplit(request).netloc for request in visit.requests} == {f"127.0.0.1:{keys.port}"}


def test_nothing_is_loaded_from_other_hosts_and_every_picture_loads(review, visit):  # noqa: F811
    _, keys = review
    page = enter(visit, keys)
    page.wait_for_load_state("networkidle")
    assert {urlsplit(request).netloc for request in visit.requests} == {f"127.0.0.1:{keys.port}"}
    page.evaluate("for (const image of document.images) image.loading = 'eager'")
    until(page, "[...document.images].every((image) => image.complete && image.naturalWidth > 0)")


def test_without_scripts_the_buttons_work(review, visit):  # noqa: F811
    survey, keys = review
    page = enter(visit, keys, java_script_enabled=False)
    most = str(survey.class_sizes.argmax())
    with page.expect_navigation():
        page.click(".guess.first")
    with page.expect_navigation():
        page.fill("#text", "horse")
        page.click("#search button")
    assert [kind for _, kind, _ in said(survey)] == ["class", "class"]
    with page.expect_navigation():
        page.click("text=Changed most often")
    with page.expect_navigation():
        page.select_option("#class", most)
        page.click("#narrow button")
    assert f"class={most}" in page.url


def test_two_tabs_at_once(review, visit):  # noqa: F811
    survey, keys = review
    one = enter(visit, keys)
    two = one.context.new_page()
    two.goto(f"http://127.0.0.1:{keys.port}/?order=sure")
    press(one, "Enter")
    press(two, "Enter")
    press(one, "Backspace")
    assert [image for image, _, _ in said(survey)] == [survey.gallery.names[survey.numbers("sure")[0]]]


@pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_the_report_fits_the_window_and_has_contrast(review, visit, options):  # noqa: F811
    _, keys = review
    page = enter(visit, keys, options)
    press(page, "Enter")
    press(page, "2")
    for details in page.query_selector_all("details"):
        details.evaluate("(element) => element.open = true")
    assert overflow(page) == 0
    faint = [text for text in contrasts(page) if text["ratio"] < 4.5 and text["text"] != "Undo"]
    assert faint == []


def test_touch_targets_are_large_enough(review, visit):  # noqa: F811
    survey, keys = review
    page = enter(visit, keys, PHONE)
    for selector in (
        ".guess.first",
        "text=Most confident first",
    ):  # an answer, so that all links are there; and the list of classes
        with page.expect_navigation():
            page.tap(selector)
    assert len(said(survey)) == 1
    small = page.evaluate(
        """() => [...document.querySelectorAll('a, button, select, summary, input:not([type=hidden])')]
            .map((e) => [e.getBoundingClientRect(), e.textContent.trim() || e.id])
            .filter(([box]) => box.width && (box.width < 44 || box.height < 44))
            .map(([box, name]) => `${name}: ${box.width} x ${box.height}`)"""
    )
    assert small == []


def tree(page):
    """The accessibility tree as Chromium hands it to a screen reader: (role, name) of each node, and who is live."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    seen = [node for node in nodes if not node["ignored"]]
    return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in seen]


def test_the_accessibility_tree_announces_answers(review, visit):  # noqa: F811
    survey, keys = review
    page = enter(visit, keys)
    predicted = [survey.gallery.classes[label] for label in survey.gallery.predictions.label[survey.numbers(SAMPLE)]]
    press(page, "Enter")
    until(page, "document.getElementById('live').textContent")
    heard = page.text_content("#live")
    assert heard == f"Saved: {predicted[0]}. Image 2 of 20: is this {predicted[1]}?"
    assert page.title().startswith(f"{predicted[1]}? 2 of 20")
    nodes = tree(page)
    roles = {role for role, _ in nodes}
    assert {"banner", "navigation", "main", "complementary", "status", "heading", "image", "list"} <= roles
    assert ("heading", f"Is this {predicted[1]}?") in nodes
    silent = [(role, name) for role, name in nodes if role in {"button", "link", "textbox", "combobox"} and not name]
    assert silent == []
    assert any(role == "image" and name.startswith("Image 2 of 20, ") for role, name in nodes)


def test_single_keys_can_be_switched_off_permanently(review, visit):  # noqa: F811
    survey, keys = review
    page = enter(visit, keys)
    page.click("text=Keys")
    page.uncheck("#single")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.type("1h")
    assert said(survey) == [] and page.input_value("#text") == ""
    with page.expect_navigation():
        page.click("#next")
    assert not page.is_checked("#single")


def test_every_field_and_image_has_a_name(review, visit):  # noqa: F811
    _, keys = review
    page = enter(visit, keys)
    with page.expect_navigation():
        page.click("text=Most confident first")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('input:not([type=hidden]), select, button, a, img')].filter((e) =>
            e.tagName === 'IMG' ? !e.hasAttribute('alt')
            : !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length))).length"""
    )
    assert nameless == 0
