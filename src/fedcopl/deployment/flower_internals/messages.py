"""Sender and error codes of Flower's `Message`, which its public interface does not offer."""

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

LOST = {  # the request or its reply was lost: the server sends again, and gets the same reply
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
}


def act_for(task: int, run: int, node: int) -> None:
    """Set the sender of the messages that this process creates."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node


def is_lost(message: Message) -> bool:
    """Return whether a message reports a lost request or reply.

    >>> from flwr.app import RecordDict
    >>> act_for(1, 1, 1)
    >>> is_lost(Message(RecordDict(), 7, "query.train"))
    False
    """
    return message.has_error() and message.error.code in LOST
