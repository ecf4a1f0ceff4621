"""The connection of a site to a SuperLink, in the site's own process, instead of Flower's SuperNode.

A SuperNode is a second Python process per site, which pulls a request, stores it, serves it over HTTP on this machine,
stores the reply and sends it on; it also fetches the code of the app that the server names. Here the site pulls its
requests itself. No code is fetched, and nothing is stored twice.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, node_pb2
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from . import ANNOUNCED_HEARTBEAT, set_sender

_SEND_INTERVAL = 0.6 * ANNOUNCED_HEARTBEAT  # seconds between two heartbeats that are sent
_GATEWAY_ERRORS = (502, 503, 504)  # status codes of a gateway that does not reach its server
_PIECES_TIMEOUT = 60.0  # seconds for the pieces of a request to arrive
_MAX_BYTES = 10**9  # of a request


class ConnectionLost(Exception):
    """The server no longer knows this connection, or a message was lost: the site has to reconnect."""


@contextmanager
def site_connection(address: str, ca: Path, key: ec.EllipticCurvePrivateKey) -> Iterator["SiteConnection"]:
    """Connect as the site with this key; `httpx.HTTPError` if the server rejects it."""
    interceptors = (
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    )
    with FleetHttpClient.from_server_address(address, False, ca.read_bytes(), interceptors) as client:
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        request = fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=ANNOUNCED_HEARTBEAT)
        node = client.ActivateNode(request).node_id
        connection = SiteConnection(client, node_pb2.Node(node_id=node))
        closed = threading.Event()
        heartbeats = threading.Thread(target=connection.send_heartbeats, args=(closed,), daemon=True)
        heartbeats.start()
        try:
            yield connection
        finally:
            closed.set()
            heartbeats.join()
            with suppress(httpx.HTTPError, RuntimeError):  # the server may have ended
                client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=node))


class SiteConnection:
    """Pulls requests one at a time, and sends replies."""

    def __init__(self, client: FleetHttpClient, node: node_pb2.Node):
        self._client, self._node = client, node
        self.error: httpx.HTTPError | None = None  # of the last poll, None if it succeeded
        self._is_rejected = False

    def send_heartbeats(self, closed: threading.Event) -> None:
        """Send heartbeats until the connection is closed, or until the server no longer knows it."""
        request = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=ANNOUNCED_HEARTBEAT)
        while not self._is_rejected and not closed.wait(_SEND_INTERVAL):
            try:
                self._is_rejected = not self._client.SendNodeHeartbeat(request).success
            except httpx.HTTPStatusError as error:
                self._is_rejected = error.response.status_code not in _GATEWAY_ERRORS
            except httpx.HTTPError:
                continue

    def next(self) -> Message | None:
        """Return the next request; None if there is none, or if the server cannot be reached: then `error` is set."""
        if self._is_rejected:
            raise ConnectionLost("the server no longer knows this connection")
        try:
            pulled = self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=self._node))
        except (httpx.HTTPStatusError, httpx.TransportError) as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in _GATEWAY_ERRORS:
                raise ConnectionLost(f"status {error.response.status_code}") from error
            self.error = error
            return None
        self.error = None
        if not pulled.messages_list:
            return None
        with _message_errors():
            return self._fetch(pulled.messages_list[0].metadata.run_id, pulled.message_object_trees[0])

    def _fetch(self, run: int, tree: message_pb2.ObjectTree) -> Message:
        """Pull all pieces of a request, confirm it, and return it; replies then have this site as their sender."""
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, run)
        contents: dict[str, bytes] = {}
        end = time.monotonic() + _PIECES_TIMEOUT
        for piece in dict.fromkeys(part.object_id for part in iterate_object_tree(tree)):
            contents[piece] = _pull_when_available(pull, piece, end)
            if sum(map(len, contents.values())) > _MAX_BYTES:
                raise ConnectionLost(f"a request is larger than {_MAX_BYTES:,} bytes")
        make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run)(tree.object_id)
        message = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(message, Message):
            raise ConnectionLost(f"received a {type(message).__name__} instead of a request")
        message.metadata.__dict__["_message_id"] = tree.object_id  # Flower has no setter for it
        set_sender(0, run, self._node.node_id)
        return message

    def send(self, reply: Message) -> None:
        """Send all pieces of a reply."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with _message_errors(), no_object_id_recompute():
            request = fleet_pb2.PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[0.0],  # the duration is private
            )
            pushed, run = self._client.PushMessages(request), reply.metadata.run_id
            push = make_push_object_fn_protobuf(self._client.PushObject, self._node, run, pushed.session_id)
            pieces = get_all_nested_objects(reply)
            for piece in pushed.objects_to_push:
                push(piece, pieces[piece].deflate())


def _pull_when_available(pull: Callable[[str], bytes], piece: str, end: float) -> bytes:
    """Pull a piece of a request; wait for it until `end`, since the server may still be sending it."""
    while True:
        try:
            return pull(piece)
        except ObjectUnavailableError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@contextmanager
def _message_errors() -> Iterator[None]:
    """Turn every error of one message into `ConnectionLost`: the site reconnects, and the server sends again."""
    try:
        yield
    except (httpx.HTTPError, ObjectPullError, ObjectPushError, ObjectUnavailableError, KeyError, ValueError) as error:
        raise ConnectionLost(f"{type(error).__name__}: {error}") from error
