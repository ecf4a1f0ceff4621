"""Flower's grid, but no site can keep the server waiting or bring it down.

An answer comes in two parts, first the list of its pieces and then the pieces. Flower's own grid waits for the pieces,
for hours if need be, and for one site at a time; and it takes for granted that they can be put together. Here an answer
whose pieces are not all there is looked at again later, and one that makes no sense is an error of its sender's alone.
Nor can a SuperLink that is gone: Flower's grid would try again for ever, this one for a while, and can be stopped.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid import HttpGrid

from ...errors import Interrupted

LOST = {  # the question or its answer is gone: ask again, the site gives the same answer
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
}
LARGEST = 10**9  # bytes of one answer
TRYING = 30.0  # seconds a SuperLink may be away; it is on this machine
LOOK = 0.5  # seconds between two looks whether to stop, while it is away


def is_lost(message: Message) -> bool:
    """Whether this stands for a question or an answer that got lost on its way.

    >>> from flwr.app import RecordDict
    >>> from fedcopl.deployment.flower_internals.identity import act_for
    >>> act_for(1, 1, 1)
    >>> is_lost(Message(RecordDict(), 7, "query.train"))
    False
    """
    return message.has_error() and message.error.code in LOST


@dataclass
class _Arriving:
    """An answer on its way: its id, its sender, the ids of its pieces, and those that are there."""

    message: str
    sender: int
    pieces: list[str]
    there: dict[str, bytes] = field(default_factory=dict)


class PatientGrid(HttpGrid):
    """See above; in all else Flower's `HttpGrid`."""

    _arriving: dict[str, _Arriving]  # by the id of the question

    def __init__(self, *arguments: Any, should_stop: Callable[[], bool] = lambda: False, **named: Any):
        super().__init__(*arguments, **named)
        self._arriving = {}
        self._should_stop = should_stop
        self._retry_invoker.max_time = TRYING
        self._retry_invoker.wait_function = self._wait

    def _wait(self, seconds: float) -> None:
        """Between two tries; `should_stop` may also say that trying is of no use."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._should_stop():
                raise Interrupted("stopped; go on with --resume")
            time.sleep(min(LOOK, max(0.0, end - time.monotonic())))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Answers that are complete; who is asked about no longer is forgotten."""
        asked = list(message_ids)
        self._arriving = {question: one for question, one in self._arriving.items() if question in asked}
        self._look_for_new([question for question in asked if question not in self._arriving])
        complete = {question: self._message(question, one) for question, one in list(self._arriving.items())}
        come = {question: message for question, message in complete.items() if message is not None}
        self._arriving = {question: one for question, one in self._arriving.items() if question not in come}
        return list(come.values())

    def _look_for_new(self, questions: list[str]) -> None:
        if not questions:
            return
        found = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=questions))
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            pieces = [piece.object_id for piece in iterate_object_tree(tree)]
            about = message.metadata
            self._arriving[about.reply_to_message_id] = _Arriving(about.message_id, about.src_node_id, pieces)

    def _message(self, question: str, one: _Arriving) -> Message | None:
        """The answer if it is complete, an error if it never will be or makes no sense, else None."""
        try:
            self._fetch(one)
        except ObjectUnavailableError:
            return None
        except ObjectPullError as error:
            return self._error(question, one, ErrorCode.MESSAGE_UNAVAILABLE, str(error))
        self._confirm(one.message)
        try:
            return _put_together(one)
        except Exception as error:  # whatever pieces that somebody made up may set off
            return self._error(question, one, ErrorCode.UNKNOWN, f"cannot be put together ({type(error).__name__})")

    def _fetch(self, one: _Arriving) -> None:
        pull = make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id)
        for piece in one.pieces:
            if piece not in one.there and sum(map(len, one.there.values())) <= LARGEST:
                one.there[piece] = pull(piece)

    def _confirm(self, message: str) -> None:
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=message)
        self._runtime_client.ConfirmMessageReceived(request)

    def _error(self, question: str, one: _Arriving, code: int, reason: str) -> Message:
        about = Metadata(
            run_id=self.run.run_id,
            message_id="",
            src_node_id=one.sender,
            dst_node_id=self.node.node_id,
            message_type="system",
            group_id="",
            ttl=0,
            reply_to_message_id=question,
            created_at=time.time(),
        )
        return make_message(metadata=about, error=Error(code=code, reason=reason))


def _put_together(one: _Arriving) -> Message:
    message = inflate_object_from_contents(one.message, dict(one.there))
    if not isinstance(message, Message):
        raise TypeError(f"a {type(message).__name__} came as an answer")
    message.metadata.__dict__["_message_id"] = one.message
    return message
