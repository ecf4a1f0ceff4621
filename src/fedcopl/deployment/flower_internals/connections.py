"""HTTP clients of a server for its SuperLink, for which Flower offers no public client.

`Control` registers sites and starts a run. `server_task` acquires the task of that run from the Runtime interface.
Flower would unpack and run the app that the task names; here the server's own process executes the task.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto import control_pb2, node_pb2, runtime_pb2
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

from ...errors import FederationError, Interrupted
from . import CONTROL_HEADER, control_key, set_sender

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_ACQUIRE_TIME = 60.0  # seconds to wait for the task
RunGivenUp = RunNotRunningException  # raised by a grid when the SuperLink has ended its run
# The bundle that a SuperLink requires of a run; each site runs the code that it has installed.
_APP = """
[project]
name = "fedcopl"
version = "1.0.0"
description = "Bundle without code: each site runs the fedcopl that it has installed."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedcopl"

[tool.flwr.app.components]
serverapp = "fedcopl.flower_app.server_app:app"
clientapp = "fedcopl.flower_app.client_app:app"
"""
_log = logging.getLogger("fedcopl.flower")


class _OperatorKey:
    """Authenticates requests to Control with the server's secret, which other users of the machine cannot read."""

    def __init__(self, secret: bytes):
        self._headers = {CONTROL_HEADER: control_key(secret)}

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        context.request.headers.update(self._headers)
        response: httpx.Response = call_next(context)
        return response


class Control:
    """The Control interface of a SuperLink on this machine."""

    def __init__(self, address: str, ca: Path, secret: bytes):
        interceptors = (RuntimeVersionHttpInterceptor(component_name="flwr"), _OperatorKey(secret))
        self._client = ControlHttpClient.from_server_address(address, False, ca.read_bytes(), interceptors)

    def sites(self) -> list[node_pb2.NodeInfo]:
        """Return the registered sites."""
        nodes = self._client.ListNodes(control_pb2.ListNodesRequest()).nodes_info
        return [node for node in nodes if node.status != NodeStatus.UNREGISTERED]

    def register(self, name: str, public: bytes) -> str:
        """Register a site; returns the reason if that fails, else an empty string."""
        try:
            self._client.RegisterNode(control_pb2.RegisterNodeRequest(public_key=public, name=name))
        except httpx.HTTPStatusError as error:
            return " ".join(error.response.text.split())[:200] or f"status {error.response.status_code}"
        return ""

    def unregister(self, site: node_pb2.NodeInfo) -> None:
        self._client.UnregisterNode(control_pb2.UnregisterNodeRequest(node_id=site.node_id))

    def start_run(self) -> int:
        """Start a run whose app bundle contains no code, and return its id."""
        request = control_pb2.StartRunRequest()
        request.fab.content = build_fab_from_files({"pyproject.toml": _APP.encode()})[0]
        return int(self._client.StartRun(request).run_id)

    def traffic(self, run_id: int) -> dict[str, int]:
        """Return the bytes sent to the sites and received from them, as the SuperLink counts them."""
        run = self._client.ListRuns(control_pb2.ListRunsRequest(run_id=run_id)).run_dict[run_id]
        return {"sent": int(run.bytes_sent), "received": int(run.bytes_recv)}

    def close(self) -> None:
        self._client.close()


@contextmanager
def server_task(address: str, ca: Path, secret: bytes, should_stop: Callable[[], bool]) -> Iterator[HttpGrid]:
    """Acquire the task of the run that was started, yield its grid, and report the end to the SuperLink."""
    certificate = ca.read_bytes()
    token = _acquire_task(address, certificate, secret, should_stop)
    grid = HttpGrid(address, False, certificate, token=token)
    client = _runtime(address, certificate, "flwr-serverapp", RuntimeTokenHttpInterceptor(token))
    heartbeats, status = HeartbeatSender(partial(_send_heartbeat, client)), SubStatus.FAILED
    heartbeats.start()
    try:
        task = client.PullTaskInput(runtime_pb2.PullTaskInputRequest())
        set_sender(task.task_id, task.run.run_id, task.context.node_id)
        grid.set_run(run_from_proto(task.run))
        yield grid
        status = SubStatus.COMPLETED
    finally:
        heartbeats.stop()
        try:
            client.PushTaskOutput(runtime_pb2.PushTaskOutputRequest(sub_status=status, details=""))
        except httpx.HTTPError as error:
            if status == SubStatus.COMPLETED:  # after a failure, the first error is raised instead
                _log.warning("cannot report the end of the run to the SuperLink: %s", error)
        grid.close()
        client.close()


def _acquire_task(address: str, certificate: bytes, secret: bytes, should_stop: Callable[[], bool]) -> str:
    """Return the token of the task; the SuperLink gives it only to a process that has its secret."""
    acquiring = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[_ACQUIRE])
    request = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
    end = time.monotonic() + _ACQUIRE_TIME
    with _runtime(address, certificate, "SuperExec", acquiring) as client:
        while time.monotonic() < end:
            with suppress(httpx.HTTPError):
                token = str(client.AcquireTask(request).token)
                if token:
                    return token
            if should_stop():
                raise Interrupted("stopped; continue with --resume")
            time.sleep(0.1)
    raise FederationError(f"the SuperLink has not offered the task of the run within {_ACQUIRE_TIME:.0f} s")


def _runtime(address: str, certificate: bytes, component: str, interceptor: Any) -> RuntimeHttpClient:
    interceptors = [RuntimeVersionHttpInterceptor(component_name=component), interceptor]
    return RuntimeHttpClient.from_server_address(address, False, certificate, interceptors)


def _send_heartbeat(client: RuntimeHttpClient) -> bool:
    """Send a heartbeat of the task. Flower's own function would end the process on an error response."""
    try:
        client.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True
