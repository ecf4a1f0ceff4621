"""A site's connection to a SuperLink, in the site's own process, in the stead of Flower's SuperNode.

A SuperNode is a second Python beside every site, which takes a question, stores it, gives it out over HTTP on this
machine, stores the answer and sends that on; it also fetches the code of the app that the server names. Here the site
asks itself. No code is fetched, and nothing is stored twice.
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
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
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

from . import HEARTBEAT
from .messages import act_for

BEAT = 0.6 * HEARTBEAT  # seconds between two signs of life
GONE = (502, 503, 504)  # said by what stands before a server that is away
PIECES = 60.0  # seconds the pieces of a question may take to come
LARGEST = 10**9  # bytes of a question


class ConnectionLost(Exception):
    """The server does not know this connection any more, or a message got lost on it: connect anew."""


@contextmanager
def site_connection(address: str, ca: Path, key: ec.EllipticCurvePrivateKey) -> Iterator["SiteConnection"]:
    """Be connected as the site with this key; `httpx.HTTPError` if that is not granted."""
    shown = (RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(key, key.public_key()))
    with FleetHttpClient.from_server_address(address, False, ca.read_bytes(), shown) as client:
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        node = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT)).node_id
        connection = SiteConnection(client, Node(node_id=node))
        over = threading.Event()
        beating = threading.Thread(target=connection.beat, args=(over,), daemon=True)
        beating.start()
        try:
            yield connection
        finally:
            over.set()
            beating.join()
            with suppress(httpx.HTTPError, RuntimeError):  # who is gone need not be told
                client.DeactivateNode(DeactivateNodeRequest(node_id=node))


class SiteConnection:
    """Questions one at a time, and their answers."""

    def __init__(self, client: FleetHttpClient, node: Node):
        self._client, self._node = client, node
        self.trouble: httpx.HTTPError | None = None  # why nobody could be asked just now; it is tried again
        self._unknown = False

    def beat(self, over: threading.Event) -> None:
        """Say that this site is alive, until the end or until nobody knows it any more."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        while not over.wait(BEAT):
            try:
                self._unknown = not self._client.SendNodeHeartbeat(request).success
            except httpx.HTTPStatusError as error:
                self._unknown = error.response.status_code not in GONE
            except httpx.HTTPError:
                continue
            if self._unknown:
                return

    def next(self) -> Message | None:
        """The next question, whole; None if there is none, or nobody to ask."""
        if self._unknown:
            raise ConnectionLost("the server does not know this connection any more")
        try:
            found = self._client.PullMessages(PullMessagesRequest(node=self._node))
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in GONE:
                raise ConnectionLost(f"status {error.response.status_code}") from error
            self.trouble = error
            return None
        except httpx.TransportError as error:
            self.trouble = error
            return None
        self.trouble = None
        if not found.messages_list:
            return None
        with _lost_on_the_way():
            return self._fetch(found.messages_list[0].metadata.run_id, found.message_object_trees[0])

    def _fetch(self, run: int, tree: ObjectTree) -> Message:
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, run)
        contents: dict[str, bytes] = {}
        end = time.monotonic() + PIECES
        for piece in dict.fromkeys(part.object_id for part in iterate_object_tree(tree)):
            contents[piece] = _patiently(pull, piece, end)
            if sum(map(len, contents.values())) > LARGEST:
                raise ConnectionLost("a question is too large")
        make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run)(tree.object_id)
        message = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(message, Message):
            raise ConnectionLost(f"a {type(message).__name__} came as a question")
        message.metadata.__dict__["_message_id"] = tree.object_id
        act_for(0, run, self._node.node_id)
        return message

    def hand_in(self, reply: Message) -> None:
        """Send an answer, all of it."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with _lost_on_the_way(), no_object_id_recompute():
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[0.0],  # how long it took is nobody's business
            )
            taken = self._client.PushMessages(request)
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self._node, reply.metadata.run_id, taken.session_id
            )
            pieces = get_all_nested_objects(reply)
            for piece in taken.objects_to_push:
                push(piece, pieces[piece].deflate())


def _patiently(pull: Callable[[str], bytes], piece: str, end: float) -> bytes:
    """A piece of a question; the server may still be sending it."""
    while True:
        try:
            return pull(piece)
        except ObjectUnavailableError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@contextmanager
def _lost_on_the_way() -> Iterator[None]:
    """Whatever goes wrong with one message: a new connection, and the server asks again."""
    try:
        yield
    except (httpx.HTTPError, ObjectPullError, ObjectPushError, ObjectUnavailableError, KeyError, ValueError) as error:
        raise ConnectionLost(f"{type(error).__name__}: {error}") from error
