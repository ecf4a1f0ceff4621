"""No site can keep the server waiting with half an answer, or bring it down with a made-up one."""

from types import SimpleNamespace

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from deployment import toolbox
from fedcopl.deployment.flower_internals import patient_grid as module
from fedcopl.deployment.flower_internals.patient_grid import PatientGrid, is_lost
from fedcopl.errors import FederationError, Interrupted
from free_ports import closed_port

assert toolbox  # messages can be made


class FakeLink:
    """A SuperLink with the answers that were pushed to it, and the pieces that have come so far."""

    def __init__(self):
        self.answers, self.pieces, self.confirmed = [], {}, []

    def push(self, question, text, *, upto=None):
        question.metadata.__dict__["_message_id"] = f"question {text}"
        answer = Message(RecordDict({"x": ConfigRecord({"x": text})}), reply_to=question)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        contents = {id: piece.deflate() for id, piece in get_all_nested_objects(answer).items()}
        self.pieces |= {
            id: (content if number < (upto or 99) else b"") for number, (id, content) in enumerate(contents.items())
        }
        plain = message_to_proto(answer)
        self.answers.append((plain, get_object_tree(answer)))
        return contents

    def PullMessages(self, request):
        new = [(m, t) for m, t in self.answers if m.metadata.reply_to_message_id in request.message_ids]
        self.answers = [pair for pair in self.answers if pair not in new]
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
    monkeypatch.setattr(PatientGrid, "_runtime_client", link)
    monkeypatch.setattr(PatientGrid, "run", SimpleNamespace(run_id=1))
    return PatientGrid(token="t")


def question():
    return Message(RecordDict(), 7, "query.x")


def texts(messages):
    return [message.content["x"]["x"] for message in messages]


def test_half_an_answer_is_not_waited_for_and_comes_when_it_is_whole(grid, link):
    contents = link.push(question(), "slow", upto=1)
    link.push(question(), "quick")
    both = ["question slow", "question quick"]
    assert texts(grid.pull_messages(both)) == ["quick"]
    assert list(grid.pull_messages(both[:1])) == []
    link.pieces |= contents
    assert texts(grid.pull_messages(both[:1])) == ["slow"]
    assert len(link.confirmed) == 2


def test_an_answer_whose_pieces_are_gone_is_lost(grid, link):
    for piece in link.push(question(), "gone"):
        del link.pieces[piece]
    [message] = grid.pull_messages(["question gone"])
    assert message.error.code == ErrorCode.MESSAGE_UNAVAILABLE and is_lost(message)
    assert message.metadata.reply_to_message_id == "question gone"


@pytest.mark.parametrize("content", [b"rubbish", b"Message  9\x00{}", b"\x00", b"Array  2\x00{}"])
def test_made_up_pieces_are_an_error_of_their_sender(grid, link, content):
    for piece in link.push(question(), "x"):
        link.pieces[piece] = content
    [message] = grid.pull_messages(["question x"])
    assert message.error.code == ErrorCode.UNKNOWN and not is_lost(message)
    assert message.error.reason.startswith("cannot be put together")


def test_too_much_is_not_even_fetched(grid, link, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 10)
    link.push(question(), "x" * 100)
    [message] = grid.pull_messages([f"question {'x' * 100}"])
    assert message.error.code == ErrorCode.UNKNOWN


def grid_to_nobody(**named):
    return PatientGrid(f"127.0.0.1:{closed_port()}", True, None, token="t", **named)


def test_a_link_that_is_gone_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(module, "TRYING", 0.1)
    with pytest.raises(httpx.ConnectError):
        grid_to_nobody().get_nodes()


def test_while_a_link_is_away_the_server_can_be_stopped_and_told_that_it_has_ended():
    with pytest.raises(Interrupted, match="stopped; go on with --resume"):
        grid_to_nobody(should_stop=lambda: True).get_nodes()

    def ended():
        raise FederationError("the SuperLink has ended")

    with pytest.raises(FederationError, match="has ended"):
        grid_to_nobody(should_stop=ended).get_nodes()
