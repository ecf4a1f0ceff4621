"""Neither an incomplete or invalid reply nor a lost SuperLink blocks the server."""

import threading
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid import HttpGrid

from deployment import toolbox
from fedcopl.deployment.flower_internals import is_lost
from fedcopl.deployment.server import grid_transport
from fedcopl.deployment.server.grid_transport import GridThreads
from fedcopl.errors import FederationError, Interrupted
from free_ports import closed_port
from waiting import until

assert toolbox  # messages can be made


class FakeLink:
    """A SuperLink with the replies that were pushed to it, and the pieces that have arrived."""

    def __init__(self):
        self.replies, self.pieces, self.confirmed, self.pulls = [], {}, [], 0
        self.error = None

    def reply(self, request, text, *, upto=99):
        reply = Message(RecordDict({"x": ConfigRecord({"x": text})}), reply_to=request)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        contents = {id: piece.deflate() for id, piece in get_all_nested_objects(reply).items()}
        self.pieces |= {id: content if number < upto else b"" for number, (id, content) in enumerate(contents.items())}
        self.replies.append((message_to_proto(reply), get_object_tree(reply)))
        return contents

    def PushMessages(self, request):
        ids = [message.metadata.message_id for message in request.messages_list]
        return PushAppMessagesResponse(message_ids=ids)

    def PushObject(self, request):
        raise AssertionError("no piece was requested")

    def PullMessages(self, request):
        self.pulls += 1
        if self.error:
            raise self.error
        new = [pair for pair in self.replies if pair[0].metadata.reply_to_message_id in request.message_ids]
        self.replies = [pair for pair in self.replies if pair not in new]
        messages, trees = zip(*new, strict=True) if new else ((), ())
        return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

    def PullObject(self, request):
        content = self.pieces.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None, object_available=bool(content), object_content=content or b""
        )

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def link():
    return FakeLink()


@pytest.fixture
def grid(link, monkeypatch):
    monkeypatch.setattr(HttpGrid, "_runtime_client", link)
    made = HttpGrid(token="t")
    made._run = SimpleNamespace(run_id=1)
    return GridThreads(made, lambda: False)


def sent(grid, *texts):
    """One request for each text."""
    requests = [Message(RecordDict({"of": ConfigRecord({"of": text})}), 7, "query.x", ttl=60) for text in texts]
    assert list(grid.push_messages(requests)) == [request.metadata.message_id for request in requests]
    return requests


def pulled(grid, *requests):
    """Wait for replies to these requests."""
    replies = []

    def pull():
        replies.extend(grid.pull_messages([request.metadata.message_id for request in requests]))
        return replies

    until(pull, lambda: "no reply arrived")
    return replies


def test_an_incomplete_reply_does_not_block_and_is_read_when_complete(grid, link):
    slow, quick = sent(grid, "slow", "quick")
    contents = link.reply(slow, "slow", upto=1)
    link.reply(quick, "quick")
    [first] = pulled(grid, slow, quick)
    assert first.content["x"]["x"] == "quick"
    assert list(grid.pull_messages([slow.metadata.message_id])) == []
    link.pieces |= contents
    [second] = pulled(grid, slow)
    assert second.content["x"]["x"] == "slow" and len(link.confirmed) == 2


def test_a_reply_whose_pieces_are_gone_is_lost(grid, link):
    [request] = sent(grid, "gone")
    for piece in link.reply(request, "gone"):
        del link.pieces[piece]
    [message] = pulled(grid, request)
    assert message.error.code == ErrorCode.MESSAGE_UNAVAILABLE and is_lost(message)
    assert message.metadata.reply_to_message_id == request.metadata.message_id


@pytest.mark.parametrize("content", [b"rubbish", b"Message  9\x00{}", b"\x00", b"Array  2\x00{}"])
def test_malformed_pieces_are_an_error_of_their_sender(grid, link, content):
    [request] = sent(grid, "x")
    for piece in link.reply(request, "x"):
        link.pieces[piece] = content
    [message] = pulled(grid, request)
    assert message.error.code == ErrorCode.UNKNOWN and not is_lost(message)
    assert message.error.reason.startswith("malformed message")
    assert message.metadata.src_node_id == 7


@pytest.mark.parametrize("error", [httpx.ConnectError("gone"), grid_transport.RunGivenUp()], ids=repr)
def test_an_error_of_the_superlink_is_raised(grid, link, error):
    [request] = sent(grid, "x")
    link.error = error
    with pytest.raises(type(error)):
        pulled(grid, request)


def test_a_reply_that_takes_long_is_polled_for_less_often(grid, link, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(grid_transport, "time", SimpleNamespace(monotonic=lambda: now[0]))
    [request] = sent(grid, "x")
    polls = []
    for now[0] in (0.0, 0.01, 5.0, 5.4, 5.6, 60.0, 60.9, 61.1):
        list(grid.pull_messages([request.metadata.message_id]))
        grid._polls[request.metadata.message_id].join()
        polls.append(link.pulls)
    # At once; after a tenth of the time so far; after a second at most.
    assert polls == [1, 2, 3, 3, 4, 5, 5, 6]


def grid_without_superlink(should_stop):
    return GridThreads(HttpGrid(f"127.0.0.1:{closed_port()}", True, None, token="t"), should_stop)


def test_a_server_can_be_stopped_while_its_superlink_is_away():
    with pytest.raises(Interrupted, match="stopped; continue with --resume"):
        grid_without_superlink(lambda: True).get_nodes()

    def ended():
        raise FederationError("the SuperLink has ended")

    with pytest.raises(FederationError, match="has ended"):
        grid_without_superlink(ended).get_nodes()


def test_a_call_to_a_superlink_that_does_not_respond_times_out(monkeypatch):
    monkeypatch.setattr(grid_transport, "_TIME_LIMIT", 0.1)
    never = threading.Event()
    grid = GridThreads(SimpleNamespace(get_nodes=never.wait), lambda: False)
    with pytest.raises(FederationError, match="no response from the SuperLink for 0 s; continue with --resume"):
        grid.get_nodes()
    never.set()
