"""Requests and answers that are too large, played against what stands before a SuperLink's store."""

import asyncio
import inspect
from types import SimpleNamespace

import numpy as np
import pytest

from fedcopl.deployment.flower_internals.answer_limit import InMemoryLinkState, NoLargeRequests, SparingLinkState
from fedcopl.deployment.server.answer_size import WRAPPING, largest_answer
from fedcopl.federation.server import ServerState

PUSH = "/v1/fleet/push-object"


def posted(chunks, headers=(), path=PUSH, most=10):
    """What the application got of a request in these chunks, and what was answered."""
    got, sent = [], []
    events = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]

    async def receive():
        return events.pop(0)

    async def send(event):
        sent.append(event.get("status"))

    async def app(scope, receive, send):
        while events:
            got.append(await receive())
            if got[-1]["type"] == "http.disconnect":
                return

    scope = {"type": "http", "path": path, "headers": list(headers)}
    asyncio.run(NoLargeRequests(app, most)(scope, receive, send))
    return got, [status for status in sent if status]


def test_a_request_that_says_it_is_too_large_is_not_read():
    assert posted([b"x"], [(b"content-length", b"11")]) == ([], [413])
    got, sent = posted([b"x" * 10], [(b"content-length", b"10")])
    assert len(got) == 1 and not sent


def test_one_that_does_not_say_is_read_as_far_as_it_may_go():
    got, _ = posted([b"x" * 6] * 1000)
    assert [event["type"] for event in got] == ["http.request", "http.disconnect"]
    lying, _ = posted([b"x" * 6] * 1000, [(b"content-length", b"5")])
    assert len(lying) == 2


def test_the_servers_own_questions_may_be_larger():
    got, _ = posted([b"x" * 6] * 3, path="/v1/runtime/push-object")
    assert len(got) == 3


@pytest.fixture
def link(monkeypatch):
    """A store that takes everything, and notes what was cleaned up."""
    state = SparingLinkState.__new__(SparingLinkState)
    state.stored, state.cleaned = [], []
    monkeypatch.setattr(SparingLinkState, "most", 10)
    monkeypatch.setattr(SparingLinkState, "_answered", {})
    monkeypatch.setattr(SparingLinkState, "_kept", type(SparingLinkState._kept)())
    monkeypatch.setattr(InMemoryLinkState, "store_message_and_object_tree", lambda *_: (True, []))
    monkeypatch.setattr(
        InMemoryLinkState, "store_object", lambda self, run, session, name, content: keep(self, name, content)
    )
    monkeypatch.setattr(
        InMemoryLinkState, "_cleanup_push_session", lambda self, session, **how: clean(self, session, how)
    )
    return state


def keep(state, name, content):
    """True where it is stored; a piece that is sent again is not."""
    new = name not in [stored for stored, _ in state.stored]
    state.stored += [(name, content)] * new
    return new


def clean(state, session, how):
    state.cleaned.append((session, how))


def message(question):
    return SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=question))


def test_of_an_answer_in_many_pieces_no_more_is_stored_than_one_can_have(link):
    link.store_message_and_object_tree(message("question"), None, "session")
    assert [link.store_object(1, "session", f"piece {n}", b"12345") for n in range(4)] == [True, True, False, False]
    assert link.cleaned[0] == ("session", {"cleanup_messages": True})
    # Nor under another session: the question is the same.
    link.store_message_and_object_tree(message("question"), None, "again")
    assert not link.store_object(1, "again", "piece 9", b"1")
    link.store_message_and_object_tree(message("another"), None, "next")
    assert link.store_object(1, "next", "piece 10", b"1234567890")


def test_a_piece_that_is_sent_again_counts_once(link):
    link.store_message_and_object_tree(message("question"), None, "session")
    assert [link.store_object(1, "session", "piece", b"123456") for _ in range(3)] == [True, False, False]
    assert link.store_object(1, "session", "last", b"1234")


def test_questions_are_not_bounded_and_pieces_without_a_session_refused(link):
    link.store_message_and_object_tree(message(""), None, "server")
    assert link.store_object(1, "server", "piece", bytes(100))
    assert not link.store_object(1, "", "other", b"1")


def test_flower_still_stores_by_these_methods():
    inspect.signature(InMemoryLinkState.store_object).bind(1, run_id=1, session_id="", object_id="", object_content=b"")
    inspect.signature(InMemoryLinkState.store_message_and_object_tree).bind(1, message=1, object_tree=1, session_id="")
    inspect.signature(InMemoryLinkState._cleanup_push_session).bind(1, "", cleanup_messages=True)


def test_the_largest_answer_is_known_from_the_settings():
    # 1,000 prompts of 4 bytes, twice as many under masks; sums of 10 classes and 8 readings of them are fewer.
    assert largest_answer(ServerState(0, {"visual": np.zeros(1000, np.float32)}, 10, width=4)) == WRAPPING + 8000
    # 1 + 64 + 64 x 64 sums of 8 bytes are more than no prompts.
    assert largest_answer(ServerState(0, {}, 10, width=64)) == WRAPPING + 8 * 4161
