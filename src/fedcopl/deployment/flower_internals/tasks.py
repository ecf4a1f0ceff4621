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
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
log = logging.getLogger("fedcopl.site")


@dataclass(frozen=True)
class Runtime:
    """Where tasks are given out: the Runtime interface of a SuperLink or SuperNode."""

    address: str
    secret: bytes  # shared with it: no other process of this machine is given a task
    ca: Path | None = None  # None: without TLS, within this machine only

    def client(self, token: str = "", component: str = "SuperExec") -> RuntimeHttpClient:
        """With the token of a task to work on it; without one to be given one."""
        asking = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=[ACQUIRE])
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.ca is None,
            root_certificates=self.ca.read_bytes() if self.ca else None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name=component),
                RuntimeTokenHttpInterceptor(token) if token else asking,
            ],
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
    with alive(client):
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


@contextmanager
def alive(client: RuntimeHttpClient) -> Iterator[None]:
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
