"""A server's conversations with its SuperLink, over HTTP, for which Flower offers no public client.

`Control`: the server says who may join, and starts a run. `Runtime`: it takes its task from the SuperLink. Flower would
unpack the app that the task names and run it; here the server plays its own.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
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
from flwr.superlink.grid import HttpGrid

from . import CONTROL_HEADER, control_key
from .messages import act_for

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


class OperatorKey:
    """Shows with each request that whoever asks may read the server's secret: other users of the machine may not."""

    def __init__(self, secret: bytes):
        self._headers = {CONTROL_HEADER: control_key(secret)}

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        context.request.headers.update(self._headers)
        response: httpx.Response = call_next(context)
        return response


class Control:
    """The Control interface of a SuperLink on this machine."""

    def __init__(self, address: str, ca: Path, secret: bytes):
        shown = (RuntimeVersionHttpInterceptor(component_name="flwr"), OperatorKey(secret))
        self._client = ControlHttpClient.from_server_address(address, False, ca.read_bytes(), shown)

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


@dataclass(frozen=True)
class Runtime:
    """Where tasks are given out: the Runtime interface of a SuperLink."""

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


def acquire_task(client: RuntimeHttpClient) -> str:
    """The token of the next task; empty if there is none yet, or no reply."""
    try:
        return str(client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])).token)
    except httpx.HTTPError:
        return ""


@contextmanager
def server_task(runtime: Runtime, token: str) -> Iterator[HttpGrid]:
    """The server's task of a run: a grid over which to play it. The SuperLink is told how it ended."""
    grid = HttpGrid(runtime.address, runtime.ca is None, runtime.certificate, token=token)
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
