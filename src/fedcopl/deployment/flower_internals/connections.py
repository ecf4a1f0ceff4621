"""Our conversations with Flower's SuperLink and SuperNode, over HTTP, for which Flower offers no public client.

`Control`: the server says who may join, and starts a run. `visit_server`: a site finds out whether it is let in.
`Runtime`: the server takes its task from its SuperLink, a site its questions from its SuperNode. Flower would unpack
the app that a server sends and run it. Here no code ever comes over the wire: whatever app a task names, a site answers
with the `fedcopl` that is installed there, and a server plays its own. Nor is the model loaded anew for every question.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Context, Message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from . import HEARTBEAT
from .patient_grid import PatientGrid

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
RUN_GIVEN_UP = RunNotRunningException  # what a grid raises when the SuperLink has ended its run
APP = """
[project]
name = "fedcopl"
version = "1.0.0"
description = "Names the app; the code is what each site has installed."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedcopl"

[tool.flwr.app.components]
serverapp = "fedcopl.flower_app.server_app:app"
clientapp = "fedcopl.flower_app.client_app:app"
"""
log = logging.getLogger("fedcopl.flower")


@dataclass(frozen=True)
class RegisteredSite:
    """A site as a SuperLink's registry has it."""

    id: int
    name: str
    public: bytes
    online: bool
    since: str  # when it was connected last


class Control:
    """The Control interface of a SuperLink on this machine."""

    def __init__(self, address: str, ca: Path):
        self._client = ControlHttpClient.from_server_address(
            address, False, ca.read_bytes(), [RuntimeVersionHttpInterceptor(component_name="flwr")]
        )

    def sites(self) -> list[RegisteredSite]:
        nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [
            RegisteredSite(
                node.node_id, node.name, node.public_key, node.status == NodeStatus.ONLINE, node.last_activated_at
            )
            for node in nodes
            if node.status != NodeStatus.UNREGISTERED
        ]

    def register(self, name: str, public: bytes) -> str:
        """Let a site in. Why it cannot be registered; nothing if it is."""
        try:
            self._client.RegisterNode(RegisterNodeRequest(public_key=public, name=name))
        except httpx.HTTPStatusError as error:
            return " ".join(error.response.text.split())[:200] or f"status {error.response.status_code}"
        return ""

    def unregister(self, site: RegisteredSite) -> None:
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=site.id))

    def start_run(self) -> int:
        """A run without a line of code in it; its number."""
        request = StartRunRequest()
        request.fab.content = app_bundle()
        return int(self._client.StartRun(request).run_id)

    def traffic(self, run_id: int) -> dict[str, int]:
        """Bytes that this start of the run has sent to its sites and got from them, as the SuperLink counts them."""
        run = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id]
        return {"sent": int(run.bytes_sent), "received": int(run.bytes_recv)}

    def close(self) -> None:
        self._client.close()


def app_bundle() -> bytes:
    """The app that a SuperLink wants to be given: names alone.

    >>> app_bundle()[:2]  # a ZIP archive
    b'PK'
    """
    return build_fab_from_files({"pyproject.toml": APP.encode()})[0]


def visit_server(address: str, ca: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Be connected as the site with this key for a moment; `httpx.HTTPError` if that is not granted."""
    shown = (RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(key, key.public_key()))
    with FleetHttpClient.from_server_address(address, False, ca.read_bytes(), shown) as client:
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        node = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT))
        client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))  # the SuperNode comes in its stead


@dataclass(frozen=True)
class Runtime:
    """Where tasks are given out: the Runtime interface of a SuperLink or SuperNode."""

    address: str
    secret: bytes  # shared with it: no other process of this machine is given a task
    ca: Path | None = None  # None: without TLS, within this machine only

    @property
    def certificate(self) -> bytes | None:
        return self.ca.read_bytes() if self.ca else None

    def client(self, token: str = "", component: str = "SuperExec") -> RuntimeHttpClient:
        """With the token of a task to work on it; without one to be given one."""
        asking = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=[ACQUIRE])
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.ca is None,
            root_certificates=self.certificate,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name=component),
                RuntimeTokenHttpInterceptor(token) if token else asking,
            ],
        )


class TaskQueue:
    """Tasks as they are given out, one token each."""

    def __init__(self, runtime: Runtime, kind: TaskType):
        self._client, self._kind = runtime.client(), kind

    @classmethod
    def of_server(cls, runtime: Runtime) -> "TaskQueue":
        return cls(runtime, TaskType.SERVER_APP)

    @classmethod
    def of_site(cls, runtime: Runtime) -> "TaskQueue":
        return cls(runtime, TaskType.CLIENT_APP)

    def next(self) -> str | None:
        """The token of the next task, if there is one and somebody to ask."""
        try:
            answer = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[self._kind]))
        except httpx.HTTPError:
            return None
        return answer.token or None

    def __enter__(self) -> "TaskQueue":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


class NotHandedIn(Exception):
    """A question or its answer got lost between a site and its SuperNode; the server will ask again."""


@dataclass(frozen=True)
class SiteTask:
    """One question at a site, whose answer is to be handed in."""

    question: Message
    _context: Context
    _client: RuntimeHttpClient

    def hand_in(self, reply: Message) -> None:
        push_message(self._client, reply, self._context)
        push_task_output(self._client, None, SubStatus.COMPLETED, "")


@contextmanager
def site_task(runtime: Runtime, token: str) -> Iterator[SiteTask]:
    """A site's task of a run; `NotHandedIn` for what goes wrong between this process and its SuperNode."""
    client = runtime.client(token, "flwr-clientapp")
    try:
        with _heartbeats(client):
            question, context, _, _ = pull_task_input(client)
            yield SiteTask(question, context, client)
    except (httpx.HTTPError, RuntimeError) as error:  # the latter is Flower's own
        raise NotHandedIn(str(error)) from error
    finally:
        client.close()


@contextmanager
def server_task(runtime: Runtime, token: str, should_stop: Callable[[], bool] = lambda: False) -> Iterator[PatientGrid]:
    """The server's task of a run: a grid over which to play it. The SuperLink is told how it ended."""
    grid = PatientGrid(runtime.address, runtime.ca is None, runtime.certificate, token=token, should_stop=should_stop)
    client, ended = runtime.client(token, "flwr-serverapp"), SubStatus.FAILED
    try:
        with _heartbeats(client):
            task = client.PullTaskInput(PullTaskInputRequest())
            act_for(task.task_id, task.run.run_id, task.context.node_id)
            grid.set_run(run_from_proto(task.run))
            yield grid
            ended = SubStatus.COMPLETED
    finally:
        _tell_end(client, ended)
        grid.close()
        client.close()


def act_for(task: int, run: int, node: int) -> None:
    """On whose behalf this process makes Flower's messages: they look it up when they are made."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node


def _tell_end(client: RuntimeHttpClient, ended: str) -> None:
    try:
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=ended, details=""))
    except httpx.HTTPError as error:
        if ended == SubStatus.COMPLETED:  # else a SuperLink that is gone may be the reason, which is said anyway
            log.warning("the SuperLink could not be told that the run has ended: %s", error)


@contextmanager
def _heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Say all the time that the task is being worked on. Flower's own function ends the process on a bad answer."""

    def beat() -> bool:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.HTTPError:
            return False
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()
