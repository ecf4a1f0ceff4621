"""Requests and replies that are too large, against the middleware of a SuperLink."""

import asyncio

import numpy as np
import pytest
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message

from fedcopl.deployment.flower_internals.superlink import _KEY as KEY
from fedcopl.deployment.flower_internals.superlink import _PULL as PULL
from fedcopl.deployment.flower_internals.superlink import _UploadLimit
from fedcopl.deployment.server.server_process import _OVERHEAD, _max_reply_bytes
from fedcopl.federation.server import ServerState

PUSH, ANNOUNCE = "/v1/fleet/push-object", "/v1/fleet/push-messages"


class Link:
    """A SuperLink that accepts everything, behind a limit of ten bytes."""

    def __init__(self):
        self.status, self.body = 200, b""
        self.got = []  # events of the last request, as the application got them
        self.limit = _UploadLimit(self._app, 10)

    async def _app(self, scope, receive, send):
        while not self.got or self.got[-1].get("more_body"):
            self.got.append(await receive())
        if self.got[-1]["type"] != "http.disconnect":
            await send({"type": "http.response.start", "status": self.status, "headers": []})
            await send({"type": "http.response.body", "body": self.body})

    def post(self, chunks, headers=(), path=PUSH, key=b"a"):
        """Return the status of the response to a request in these chunks; None if there was no response."""
        sent, self.got = [], []
        events = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        events[-1]["more_body"] = False

        async def receive():
            return events.pop(0)

        async def send(event):
            sent.append(event)

        scope = {"type": "http", "path": path, "headers": [*headers, (KEY, key)]}
        asyncio.run(self.limit(scope, receive, send))
        return sent[0]["status"] if sent else None

    def pull(self, *messages, key=b"a"):
        self.body = PullMessagesResponse(messages_list=messages).SerializeToString()
        assert self.post([b""], path=PULL, key=key) == 200
        self.body = b""


@pytest.fixture
def link():
    return Link()


def test_a_request_with_too_large_a_length_is_not_read(link):
    assert link.post([b"x"], [(b"content-length", b"11")]) == 413 and link.got == []
    assert link.post([b"x" * 10], [(b"content-length", b"10")]) == 200 and len(link.got) == 1


@pytest.mark.parametrize("path", [PUSH, PULL])
def test_a_request_without_a_length_is_read_up_to_the_limit(link, path):
    assert link.post([b"x" * 6] * 1000, path=path) is None
    assert [event["type"] for event in link.got] == ["http.request", "http.disconnect"]
    assert link.post([b"x" * 6] * 1000, [(b"content-length", b"5")], path=path) is None and len(link.got) == 2


def test_the_servers_own_requests_may_be_larger(link):
    assert link.post([b"x" * 6] * 3, path="/v1/runtime/push-object") == 200 and len(link.got) == 3


def test_the_pieces_of_a_reply_count_together(link):
    link.pull(Message())
    assert link.post([b"123"], path=ANNOUNCE) == 200
    assert [link.post([b"1234"]) for _ in range(3)] == [200, None, None]
    assert link.post([b"1234"], [(b"content-length", b"4")]) == 413
    assert link.post([b"1234"], path=ANNOUNCE) is None  # announcing another reply starts no new count
    assert link.post([b"x" * 10], key=b"b") == 200  # of another site
    link.pull()
    assert link.post([b"1234"]) is None  # without a new request
    link.pull(Message())
    assert link.post([b"x" * 10]) == 200


def test_json_does_not_reset_the_count(link):
    assert link.post([b"x" * 10]) == 200
    link.body = b'{"messages_list": [{}]}'
    link.post([b""], path=PULL)
    assert link.post([b"x"]) is None


def test_an_upload_that_is_refused_does_not_count(link):
    """A client with the key of another site but without its signature must not use up the limit of that site."""
    link.status = 401
    assert [link.post([b"x" * 10]) for _ in range(3)] == [401] * 3
    assert not link.limit._uploaded  # and invented keys need no memory
    link.status = 200
    assert link.post([b"x" * 10]) == 200


def test_uploads_at_the_same_time_count_together(link):
    meanwhile = []

    async def slow(scope, receive, send):
        """During the first upload, a second one arrives."""
        await receive()
        link.limit.app = link._app
        meanwhile.append(await asyncio.to_thread(link.post, [b"x" * 6]))

    link.limit.app = slow
    assert link.post([b"x" * 6]) is None and meanwhile == [None]
    assert link.got[-1]["type"] == "http.disconnect"


def test_the_largest_reply_follows_from_the_settings():
    # 1,000 prompts of 4 bytes, twice as many under masks; the priors' sums of 10 classes and a width of 4 are fewer.
    assert _max_reply_bytes(ServerState(0, {"visual": np.zeros(1000, np.float32)}, 10, width=4)) == _OVERHEAD + 8000
    # The second moments are 1 + 10 + 64 + 64 x 65 / 2 = 2,155 sums of 8 bytes: more than no prompts, and more than
    # the class sums of two models, 2 x 10 x 65.
    assert _max_reply_bytes(ServerState(0, {}, 10, width=64)) == _OVERHEAD + 8 * 2155
