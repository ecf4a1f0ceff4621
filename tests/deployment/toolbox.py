"""A fake Flower grid whose nodes are functions in this process, and other helpers for tests of deployments."""

from collections.abc import Callable

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedcopl.deployment.flower_internals import set_sender
from fedcopl.deployment.flower_internals.site_connection import site_connection
from fedcopl.deployment.keys import private_key
from fedcopl.deployment.site.pipeline import reply_to
from fedcopl.deployment.site.site_process import _join_error
from fedcopl.deployment.site.site_state import SiteState
from fedcopl.deployment.terms import terms_of
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState
from fedcopl.run.progress_reporter import ProgressReporter
from small_digits import all_digits

Node = Callable[[Message], Message | None]
set_sender(task=1, run=1, node=1)


class FakeSite:
    """A site that replies with a client of `fakes` and keeps its state in a folder."""

    folder_name = "fake"

    def __init__(self, name: str, client: Client, folder):
        self.name, self.client, self.states = name, client, SiteState(folder / name)
        self.computed = 0  # number of replies that were computed, not read from disk

    def handle(self, message, terms):
        return self.states.handle(message, terms.attempt, lambda step, state: self._count(message, state))

    def _count(self, message, state: ClientState):
        self.computed += 1
        return self.client.handle(message, state)

    def __call__(self, message: Message) -> Message:
        return reply_to(message, lambda: self)


def failed(message: Message, code: str, reason: str) -> Message:
    """Return the message that Flower sends instead of a reply; `code` is the name of an `ErrorCode`."""
    return Message(Error(getattr(ErrorCode, code), reason), reply_to=message)


class LoopGrid(Grid):
    """A grid whose nodes reply when their replies are pulled; a node that returns None does not reply."""

    def __init__(self, nodes: dict[str, Node]):
        self.nodes, self.since = dict(nodes), dict.fromkeys(nodes, "1")
        self.keys = {name: name.encode() for name in nodes}
        self.offline: set[str] = set()
        self.waiting: dict[str, Message] = {}
        self.sent: list[tuple[str, str]] = []  # (site, kind of request)
        self.nameless = False

    def id_of(self, name: str) -> int:
        return 100 + sorted(self.nodes).index(name)

    def name_of(self, id: int) -> str:
        return sorted(self.nodes)[id - 100]

    def get_nodes(self):
        return [
            NodeInfo(
                node_id=self.id_of(name),
                name="" if self.nameless else name,
                last_activated_at=self.since[name],
                public_key=self.keys[name],
            )
            for name in self.nodes
            if name not in self.offline
        ]

    def get_node_ids(self):
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(len(self.sent))
            self.waiting[message.metadata.message_id] = message
            self.sent.append((self.name_of(message.metadata.dst_node_id), message.metadata.message_type))
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        replies = [self._reply(self.waiting[id]) for id in message_ids if id in self.waiting]
        arrived = [reply for reply in replies if reply is not None]
        for reply in arrived:
            self.waiting.pop(reply.metadata.reply_to_message_id)
        return arrived[::-1]  # not in the order of the requests

    def _reply(self, message: Message) -> Message | None:
        name = self.name_of(message.metadata.dst_node_id)
        if name in self.offline:
            return failed(message, "NODE_UNAVAILABLE", "gone")
        reply = self.nodes[name](message)
        if reply is not None:
            reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
        return reply

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *_, **__):
        raise NotImplementedError


class NotingReporter(ProgressReporter):
    """A reporter that stores all notes and replies."""

    def __init__(self):
        self.notes, self.replies = [], []

    def note(self, text):
        self.notes.append(text)

    def replied(self, client, request):
        self.replies.append((client, type(request).__name__))


def terms(config, attempt=1):
    return terms_of("run", attempt, config, ["a", "b", "c"], "fake 1")


def digit_sites(root, count=3, images=40, labelled=0):
    """Write digits as image files, `root/clients/site-a/train/*.png`, and labelled ones in `test/<class>/`."""
    digits = all_digits()
    root.mkdir(parents=True, exist_ok=True)
    (root / "classes.txt").write_text("\n".join(digits.classes) + "\n")
    names = [f"site-{letter}" for letter in "abcdefgh"[:count]]
    for number, name in enumerate(names):
        train = root / "clients" / name / "train"
        train.mkdir(parents=True)
        for image in range(images):
            digits.train.images[number * images + image].save(train / f"{image:03}.png")
        for image in range(number * labelled, (number + 1) * labelled):
            test = root / "clients" / name / "test" / digits.classes[digits.test.labels[image]]
            test.mkdir(parents=True, exist_ok=True)
            digits.test.images[image].save(test / f"{image:03}.png")
    return names


def join_refusal(server, private):
    """Return why the site with this key cannot join now; None if it can."""
    try:
        with site_connection(server.address, server.ca, private_key(private)):
            return None
    except httpx.HTTPError as error:
        return _join_error(server, private.with_suffix(".pub"), error)
