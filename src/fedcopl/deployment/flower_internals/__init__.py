"""Every use of Flower's private interfaces; all other modules import from here, or from Flower's public modules.

`tests/deployment/test_flower_internals.py` checks every name that this folder imports, and names the one that a new
version of Flower changed. Each section: the purpose and the file, the reason, and the public function that Flower would
need instead.

Site in one process (site_connection)
    why: a SuperNode is a second Python process, fetches code and polls every 3 s; after a kill, a site rejoins in 20 s
    until: a SuperNode can be part of another process

Control (connections)
    why: this process registers keys and starts a run, with a bundle without code, not the `flwr` command
    until: Control has a public client, and a run can be started without a bundle

Tasks (connections)
    why: this process, which has the model, does the task; Flower would start another one with code that it was sent
    until: tasks have a public client, and the exceptions of `Grid` are public

Messages (__init__)
    why: a `Message` takes its sender from a global; a lost request is sent again, a failed site is not
    until: a grid creates messages for its own run, and the codes of `Error` are public

Local access (superlink)
    why: Control and Runtime do not authenticate; a middleware, patched in, opens them to this machine only
    until: they can listen on a port of their own, or require a secret

Upload limit (superlink)
    why: the key of a site, and the request of the server from which on the bytes of a reply are counted
    until: a SuperLink limits the size of a reply
"""

from hashlib import sha256

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

CONTROL_HEADER = "x-fedcopl-control"
# Seconds between two heartbeats that a site announces, the minimum of a SuperLink; a site without a heartbeat for twice
# as long is disconnected.
ANNOUNCED_HEARTBEAT = 10
_LOST = {  # the request or its reply was lost: the server sends the request again, and gets the same reply
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
}


def control_key(secret: bytes) -> str:
    """Return the key for Control, derived from the secret that a server shares with its SuperLink."""
    return sha256(b"control " + secret).hexdigest()


def set_sender(task: int, run: int, node: int) -> None:
    """Set the sender of the messages that this process creates."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node


def is_lost(message: Message) -> bool:
    """Return whether a message reports a lost request or reply."""
    return message.has_error() and message.error.code in _LOST
