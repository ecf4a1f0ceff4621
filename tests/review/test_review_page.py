"""The review page, asked as a browser asks."""

import re
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from fedcopl.local_page.access import Keys
from fedcopl.report.label_free import read_reviews
from fedcopl.review.expert_answers import Answers
from fedcopl.review.images import open_gallery
from fedcopl.review.page import _PER_PAGE, ReviewPage, _find_class
from fedcopl.review.sample_survey import SAMPLE, SampleSurvey
from local_page.run_folder import NASTY, make_run
from review.fake_gallery import FakeGallery

KEYS = Keys("secret-token", 8000)
OURS = "http://127.0.0.1:8000"


class Parsed(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag, **wanted):
        return [attrs for name, attrs in self.tags if name == tag and wanted.items() <= attrs.items()]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


class Browser:
    """A client with the cookie, that fills in forms as the page has them."""

    def __init__(self, survey):
        self.survey = survey
        self.client = TestClient(ReviewPage(survey, KEYS).app(), base_url=OURS, headers={"origin": OURS})
        self.client.cookies.set(KEYS.cookie, KEYS.token)

    def get(self, path="/", status=200):
        answer = self.client.get(path)
        assert answer.status_code == status
        return Parsed(answer.text)

    def post(self, path, status=200, **fields):
        answer = self.client.post(path, data={"key": KEYS.form_key, "tab": "0000000a", **fields})
        assert answer.status_code == status, answer.text
        self.address = answer.url
        return Parsed(answer.text)

    def say(self, number, say, at=0, order=SAMPLE, status=200, **more):
        return self.post("/answer", status, number=str(number), answer=say, at=str(at), order=order, **more)


@pytest.fixture
def survey(tmp_path):
    return SampleSurvey(FakeGallery(100), Answers(tmp_path, "site"))


@pytest.fixture
def browser(survey):
    return Browser(survey)


def shown_number(page):
    [image] = page.all("img", id="image")
    return int(re.fullmatch(r"/image/large/(\d+)\?\w+", image["src"])[1])


def thumbnails(page):
    return [int(re.match(r"/image/small/(\d+)", image["src"])[1]) for image in page.all("img", loading="lazy")]


def test_it_begins_with_the_random_sample(browser, survey):
    page = browser.get()
    order = survey.numbers(SAMPLE)
    assert shown_number(page) == order[0]
    assert thumbnails(page) == list(order[:_PER_PAGE])
    predicted = survey.gallery.classes[survey.gallery.predictions.label[order[0]]]
    assert f"Is this {predicted} ?" in page.text
    assert "no estimate yet" in page.text


def test_an_answer_moves_on_to_the_next_of_the_sample(browser, survey):
    order = survey.numbers(SAMPLE)
    page = browser.say(order[0], str(survey.gallery.predictions.label[order[0]]))
    assert shown_number(page) == order[1]
    assert f"Saved: {survey.gallery.names[order[0]]}" in page.text
    assert "From 1 image of the random sample, 1 right" in page.text


def test_in_other_orders_it_moves_on_by_one(browser, survey):
    doubtful = survey.numbers("doubtful")
    page = browser.say(doubtful[7], "2", at=7, order="doubtful")
    assert shown_number(page) == doubtful[8]
    assert "no estimate yet" in page.text  # such an answer says nothing about all images
    assert survey.answers.current()[survey.gallery.names[doubtful[7]]].label == survey.gallery.classes[2]


def test_the_last_image_has_no_next(browser, survey):
    doubtful = survey.numbers("doubtful")
    page = browser.say(doubtful[99], "0", at=99, order="doubtful")
    assert shown_number(page) == doubtful[99]
    assert "next" not in [attrs.get("id") for attrs in page.all("a")]


def test_a_class_by_its_name_none_and_cannot_tell(browser, survey):
    order = survey.numbers(SAMPLE)
    browser.say(order[0], "search", text="small")
    browser.say(order[1], "none")
    browser.say(order[2], "unclear")
    said = [(answer.kind, answer.label) for answer in survey.answers.current().values()]
    assert said == [("class", "small dog"), ("none", None), ("unclear", None)]


@pytest.mark.parametrize(
    ("say", "text", "message"),
    [
        ("search", "x", "No class matches “x”."),
        ("search", "hors e", "Did you mean horse?"),
        ("search", "o", "Several classes match “o”: dog, small dog, horse."),
        ("search", " ", "Type the name of a class"),
        ("4", "", "There is no such class."),
        ("-1", "", "There is no such class."),
        ("", "", "There is no such class."),
        ("1e3", "", "There is no such class."),
    ],
)
def test_an_ambiguous_answer_is_not_stored(browser, survey, say, text, message):
    page = browser.say(survey.numbers(SAMPLE)[0], say, status=422, text=text)
    assert message in page.text
    assert survey.answers.current() == {}


@pytest.mark.parametrize("number", ["100", "-1", "", "x", "../1", "9" * 30])
def test_an_unknown_image_is_not_found(browser, survey, number):
    browser.say(number, "0", status=422)
    assert survey.answers.current() == {}


def test_undo_goes_back_to_the_image(browser, survey):
    order = survey.numbers(SAMPLE)
    browser.say(order[0], "0")
    browser.say(order[1], "1", at=1)
    page = browser.post("/undo")
    assert shown_number(page) == order[1]
    assert len(survey.answers.current()) == 1
    page = browser.post("/undo")
    assert shown_number(page) == order[0]
    assert survey.answers.current() == {}
    assert [attrs for attrs in page.all("button") if "disabled" in attrs] == [{"disabled": None}]
    browser.post("/undo")  # nothing left: nothing happens


def test_the_report_can_read_the_estimate_after_every_answer(browser, survey, tmp_path):
    first = survey.numbers(SAMPLE)[0]
    browser.say(first, "0")
    (kept,) = read_reviews(tmp_path)
    assert (kept.client, kept.reviewed) == (survey.gallery.client, 1)
    browser.post("/undo", order=SAMPLE)
    assert read_reviews(tmp_path) == []


def test_two_tabs_do_not_undo_each_other(browser, survey):
    order = survey.numbers(SAMPLE)
    browser.say(order[0], "0", tab="0000000a")
    browser.say(order[1], "0", tab="0000000b")
    browser.post("/undo", tab="0000000a")
    assert set(survey.answers.current()) == {survey.gallery.names[order[1]]}


def test_each_tab_has_a_unique_name(browser):
    tabs = {browser.get().all("input", name="tab")[0]["value"] for _ in range(5)}
    assert len(tabs) == 5
    [kept] = {attrs["value"] for attrs in browser.get("/?tab=0123abcd").all("input", name="tab")}
    assert kept == "0123abcd"


def test_the_position_is_in_the_address(browser, survey):
    page = browser.get("/?order=changed&class=1&at=3")
    numbers = survey.numbers("changed", 1)
    assert shown_number(page) == numbers[3]
    assert set(survey.gallery.predictions.label[thumbnails(page)]) == {1}
    later = [attrs["href"] for attrs in page.all("a", id="next")]
    assert parse_qs(urlsplit(later[0]).query)["at"] == ["4"]
    assert parse_qs(urlsplit(later[0]).query)["class"] == ["1"]


@pytest.mark.parametrize(
    "query",
    [
        "order=evil",
        "order=sample&class=1",
        "class=99",
        "at=-1",
        "at=999999999",
        "at=x",
        "at=" + "9" * 5000,
        "tab=<b>",
        "did=1",
    ],
)
def test_invalid_values_in_an_address_are_ignored(browser, query):
    page = browser.get(f"/?{query}")
    assert len(page.all("img", id="image")) == 1


def test_paging_reaches_every_image_once(browser, survey):
    seen, address = [], "/?order=sure&at=0&tab=00000000"
    while address:
        page = browser.get(address)
        seen += thumbnails(page)
        address = next((attrs["href"] for attrs in page.all("a", id="later")), None)
    assert seen == survey.numbers("sure").tolist()


def test_the_latest_answers_are_shown_first(browser, survey):
    assert "There are no answers yet." in browser.get("/?order=answered").text
    for number in (5, 6, 7):
        browser.say(number, "0", order="sure")
    assert thumbnails(browser.get("/?order=answered")) == [7, 6, 5]


def test_a_class_without_predictions_has_no_image(tmp_path):
    browser = Browser(SampleSurvey(FakeGallery(4, label=[0, 0, 1, 1]), Answers(tmp_path, "site")))
    page = browser.get("/?order=sure&class=3")
    assert "No image has this label." in page.text
    assert [attrs["value"] for attrs in page.all("option")[:3]] == ["", "0", "1"]  # and is not offered


def test_images_are_requested_by_number_only(browser):
    client = browser.client
    assert client.get("/image/small/3").headers["content-type"] == "image/jpeg"
    assert "max-age" in client.get("/image/large/3").headers["cache-control"]
    for path in ("/image/small/100", "/image/huge/3", "/image/small/-1", "/image/small/3/..", "/image/small/3.png"):
        assert client.get(path).status_code == 404
    for path in (
        "/image/small/..%2f..%2fetc%2fpasswd",
        "/image/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%2f..%2fanswers.py",
        "/static/%2e%2e/answers.py",
        "/static/",
        "/static/watch.js",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "//etc/passwd",
    ):
        assert client.get(path).status_code == 404


def test_without_the_cookie_every_request_is_refused(survey):
    client = TestClient(ReviewPage(survey, KEYS).app(), base_url=OURS, headers={"origin": OURS})
    for path in ("/", "/image/small/1", "/answers.csv", "/static/pages.css"):
        assert client.get(path).status_code == 403
    assert client.post("/answer", data={"key": KEYS.form_key, "number": "1", "answer": "0"}).status_code == 403
    assert survey.answers.current() == {}


def test_a_post_of_another_page_stores_nothing(browser, survey):
    fields = {"number": "1", "answer": "0", "tab": "0000000a", "order": "sure"}
    client = browser.client
    assert client.post("/answer", data=fields).status_code == 403  # no key
    headers = {"origin": "http://evil.example"}
    assert client.post("/answer", data={**fields, "key": KEYS.form_key}, headers=headers).status_code == 403
    assert client.get("/answer", params={**fields, "key": KEYS.form_key}).status_code == 405
    assert survey.answers.current() == {}


def test_the_table_can_be_downloaded(browser):
    browser.say(3, "1", order="sure")
    answer = browser.client.get("/answers.csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="answers.csv"'
    assert answer.text.splitlines()[1].startswith("000003.png,")


def test_markup_in_names_is_escaped(tmp_path):
    classes = ("<b>cat</b>", "'; DROP TABLE answer; --", "{{ 7 * 7 }}", '" onfocus="alert(3)')
    nasty = "../<script>alert(4)</script>"
    make_run(tmp_path / "run", NASTY, classes, client=nasty)
    survey = SampleSurvey(open_gallery(tmp_path / "run", None), Answers(tmp_path / "run", nasty))
    browser = Browser(survey)
    for number in survey.numbers(SAMPLE):
        page = browser.say(number, str(number % 4))
    assert nasty in page.text
    assert not {"b", "iframe", "object", "base", "style"} & {tag for tag, _ in page.tags}
    assert [attrs["src"] for attrs in page.all("script")] == ["/static/review.js"]
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") or name == "style" for name in attrs)]
    assert [attrs["value"] for attrs in page.all("option") if attrs["value"] in classes] == list(classes)
    assert {answer.image for answer in survey.answers.current().values()} == set(NASTY)
    folders = {path.parent for path in tmp_path.rglob("*.sqlite")}
    assert folders == {tmp_path / "run" / "review"}


def test_an_unreadable_image_does_not_stop_the_review(tmp_path):
    survey = SampleSurvey(FakeGallery(3, broken=[0, 1, 2]), Answers(tmp_path, "site"))
    browser = Browser(survey)
    assert browser.client.get("/image/large/1").status_code == 200
    browser.say(1, "0")
    assert len(survey.answers.current()) == 1


def test_an_error_is_shown_if_answers_cannot_be_stored(browser, survey):
    survey.answers.path.parent.write_text("in the way")
    page = browser.say(1, "0", status=500)
    assert "the answers cannot be read or stored" in page.text


def test_a_hundred_thousand_images_are_paged(tmp_path):
    gallery = FakeGallery(100_000, classes=tuple(f"class {n}" for n in range(20)))
    survey = SampleSurvey(gallery, Answers(tmp_path, "site"))
    browser = Browser(survey)
    for query in ("order=sample", "order=doubtful&at=77777", "order=changed&class=17&at=9", "order=sure&at=99999"):
        gallery.names.asked.clear()
        page = browser.get(f"/?{query}")
        assert len(gallery.names.asked) <= 2 * _PER_PAGE  # a page asks for the names it shows, not for all
        assert len(thumbnails(page)) <= _PER_PAGE
        assert gallery.opened == []  # and opens no image
    for number in thumbnails(page)[:5]:
        browser.client.get(f"/image/small/{number}")
        browser.client.get(f"/image/small/{number}")
    assert gallery.opened == thumbnails(page)[:5]
    order = survey.numbers(SAMPLE)
    browser.say(order[0], "0")  # the first answer makes the list of names
    gallery.names.asked.clear()
    browser.say(order[1], "0")
    assert len(gallery.names.asked) <= 2 * _PER_PAGE
    assert gallery.opened == thumbnails(page)[:5]


@pytest.mark.parametrize(
    ("text", "found"),
    [("dog", 1), ("DOG", 1), (" small  dog ", 2), ("small_dog", 2), ("smal", 2), ("c", 0), ("at", 0), ("horse", 3)],
)
def test_a_search_finds_a_class_by_any_part_of_its_name(text, found):
    assert _find_class(text, ("cat", "dog", "small dog", "horse")) == found


def test_of_many_matching_classes_some_are_listed():
    names = [f"kind {n}" for n in range(50)]
    assert _find_class("kind", names).endswith("kind 7, ....")
