"""Doing what Flower's SuperLink and SuperNode give out to be done, in this very process.

Flower would unpack the app that a server sends and run it. Here no code ever comes over the wire: whatever app a task
names, a site answers with the `fedcopl` that is installed at the site, and a server plays its own. A process that lives
on also need not load the model anew for every question.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from .grid import PatientGrid

log = logging.getLogger("fedcopl.site")


@dataclass(frozen=True)
class Runtime:
    """Where tasks are given out: the Runtime interface of a SuperLink or SuperNode."""

    address: str
    ca: Path | None = None  # None: without TLS, within this machine only

    def client(self, token: str = "", component: str = "SuperExec") -> RuntimeHttpClient:
        shown = [RuntimeTokenHttpInterceptor(token)] if token else []
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.ca is None,
            root_certificates=self.ca.read_bytes() if self.ca else None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name=component), *shown],
        )


def take_task(client: RuntimeHttpClient, kind: TaskType) -> str | None:
    """The token of the next task, if there is one and somebody to ask."""
    try:
        answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    except httpx.HTTPError:
        return None
    return answer.token or None


def answer_one(runtime: Runtime, token: str, reply: Callable[[Message], Message]) -> bool:
    """Take the message of a client's task, answer it, and hand the answer in; whether that could be done."""
    client = runtime.client(token, "flwr-clientapp")
    with _alive(client):
        try:
            message, context, _, _ = pull_task_input(client)
            push_message(client, reply(message), context)
            push_task_output(client, None, SubStatus.COMPLETED, "")
            return True
        except (httpx.HTTPError, RuntimeError) as error:  # the server will ask again
            log.warning("an answer could not be handed in: %s", error)
            return False
        finally:
            client.close()


def play_one(runtime: Runtime, token: str, play: Callable[[PatientGrid], None]) -> None:
    """Play the server's part of a task over the grid that it opens."""
    certificate = runtime.ca.read_bytes() if runtime.ca else None
    grid = PatientGrid(runtime.address, runtime.ca is None, certificate, token=token)
    client = runtime.client(token, "flwr-serverapp")
    with _alive(client):
        outcome = SubStatus.FAILED
        try:
            given = client.PullTaskInput(PullTaskInputRequest())
            # Flower's messages look up here on whose behalf they are made.
            TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
            TaskIdentity.node_id = given.context.node_id
            grid.set_run(run_from_proto(given.run))
            play(grid)
            outcome = SubStatus.COMPLETED
        finally:
            try:
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=outcome, details=""))
            except httpx.HTTPError as error:
                log.warning("the end of the run could not be told to the SuperLink: %s", error)
    grid.close()
    client.close()


@contextmanager
def _alive(client: RuntimeHttpClient) -> Iterator[None]:
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
