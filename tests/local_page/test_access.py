"""Who is let in, and what every answer carries."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from fedcopl.local_page.access import _MAX_FORM, AccessControl, Keys, read_form

KEYS = Keys("secret-token", 8000)
OURS = "http://127.0.0.1:8000"


def home(request):
    return PlainTextResponse("home")


async def post(request: Request):
    fields = await read_form(request, KEYS)
    return PlainTextResponse("refused", 403) if fields is None else PlainTextResponse(repr(sorted(fields.items())))


def client(*, writes=True, base=OURS, known=True):
    app = Starlette(routes=[Route("/", home), Route("/post", post, methods=["POST"])])
    browser = TestClient(AccessControl(app, KEYS, writes=writes), base_url=base, follow_redirects=False)
    if known:
        browser.cookies.set(KEYS.cookie, KEYS.token)
    return browser


def test_the_token_becomes_a_cookie_and_leaves_the_address():
    browser = client(known=False)
    assert browser.get("/").status_code == 403
    welcome = browser.get("/?token=secret-token")
    assert welcome.status_code == 200
    assert 'content="0; url=/"' in welcome.text
    assert "secret-token" not in welcome.text
    cookie = welcome.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "domain" not in cookie
    assert browser.get("/").text == "home"


@pytest.mark.parametrize("token", ["", "wrong", "secret-toke", "secret-token2", "\udcff", "é"])
def test_a_wrong_token_is_refused(token):
    browser = client(known=False)
    answer = browser.get("/", params={"token": token.encode("utf-8", "replace")})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_wrong_cookie_is_refused():
    browser = client(known=False)
    browser.cookies.set(KEYS.cookie, "wrong")
    assert browser.get("/").status_code == 403
    browser.cookies.set("fedcopl-8001", KEYS.token)  # that of another port
    assert browser.get("/").status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "127.0.0.1:9999", "[::1]:8000"])
def test_names_of_this_machine_are_served(host):
    assert client().get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8000", "127.0.0.1@evil.example", "", "0.0.0.0"]
)
def test_any_other_name_is_refused_even_with_the_cookie(host):
    # the browser of somebody who was led to evil.example, whose address then became 127.0.0.1
    answer = client().get("/", headers={"host": host})
    assert answer.status_code == 421
    assert client(known=False).get("/?token=secret-token", headers={"host": host}).status_code == 421


def fields(**more):
    return {"key": KEYS.form_key, "a": "1", **more}


def test_a_form_of_the_page_is_accepted():
    answer = client().post("/post", data=fields(b="é &"), headers={"origin": OURS})
    assert answer.status_code == 200
    assert "('b', 'é &')" in answer.text


def test_a_form_of_the_page_through_a_tunnel_is_accepted():
    browser = client(base="http://localhost:9000")
    assert browser.post("/post", data=fields(), headers={"origin": "http://localhost:9000"}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:8001", "https://127.0.0.1:8000", "http://localhost:8000"],
)
def test_a_form_of_another_page_is_refused(origin):
    assert client().post("/post", data=fields(), headers={"origin": origin}).status_code == 403


def test_a_form_without_an_origin_is_refused():
    assert client().post("/post", data=fields()).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_cross_site_request_is_refused(method, site):
    headers = {"origin": OURS, "sec-fetch-site": site}
    assert client().request(method, "/" if method == "GET" else "/post", headers=headers).status_code == 403


@pytest.mark.parametrize("key", ["", "wrong", None])
def test_a_form_without_the_key_is_refused(key):
    data = {"a": "1"} if key is None else {"a": "1", "key": key}
    assert client().post("/post", data=data, headers={"origin": OURS}).status_code == 403


def test_only_url_encoded_forms_of_limited_length_are_read():
    browser, headers = client(), {"origin": OURS}
    text = f"key={KEYS.form_key}"
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/json", ""):
        assert browser.post("/post", content=text, headers={**headers, "content-type": kind}).status_code == 403
    assert browser.post("/post", data=fields(long="x" * _MAX_FORM), headers=headers).status_code == 403
    form = {**headers, "content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert browser.post("/post", content=text, headers=form).status_code == 200
    assert browser.post("/post", content=text.encode() + b"&a=\xff\xfe", headers=form).status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods_are_refused(method):
    assert client().request(method, "/").status_code == 405


def test_a_read_only_page_refuses_post():
    browser = client(writes=False)
    assert browser.get("/").status_code == 200
    assert browser.head("/").status_code == 200
    assert browser.post("/post", data=fields(), headers={"origin": OURS}).status_code == 405


@pytest.mark.parametrize(
    ("path", "known"), [("/", True), ("/", False), ("/nowhere", True), ("/?token=secret-token", False)]
)
def test_every_response_has_the_security_headers(path, known):
    headers = client(known=known).get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


def test_two_pages_on_two_ports_keep_their_cookies_apart():
    assert Keys("a", 1).cookie != Keys("a", 2).cookie
    assert Keys("a", 1).form_key != Keys("b", 1).form_key
