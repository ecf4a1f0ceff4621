"""What Flower's public `Message` needs or hides: on whose behalf it is made, and whether it was lost."""

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

LOST = {  # the request or its reply is gone: the server asks again, and the site sends the same reply
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
}


def act_for(task: int, run: int, node: int) -> None:
    """Set the sender of the messages that this process makes."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node


def is_lost(message: Message) -> bool:
    """Whether this stands for a request or a reply that was lost on its way.

    >>> from flwr.app import RecordDict
    >>> act_for(1, 1, 1)
    >>> is_lost(Message(RecordDict(), 7, "query.train"))
    False
    """
    return message.has_error() and message.error.code in LOST
