"""Playing the server's part of a run that a SuperLink gives out, in this very process."""

import logging
from collections.abc import Callable

import httpx
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from .grid import PatientGrid
from .tasks import Runtime, alive

log = logging.getLogger("fedcopl.server")


def play_one(
    runtime: Runtime,
    token: str,
    play: Callable[[PatientGrid], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Play the server's part of a task over the grid that it opens."""
    certificate = runtime.ca.read_bytes() if runtime.ca else None
    grid = PatientGrid(runtime.address, runtime.ca is None, certificate, token=token, should_stop=should_stop)
    client = runtime.client(token, "flwr-serverapp")
    with alive(client):
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
            _tell_end(client, outcome)
            grid.close()
            client.close()


def _tell_end(client: RuntimeHttpClient, outcome: str) -> None:
    try:
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=outcome, details=""))
    except httpx.HTTPError as error:
        if outcome == SubStatus.COMPLETED:  # else a SuperLink that is gone may be the reason, which is told anyway
            log.warning("the end of the run could not be told to the SuperLink: %s", error)
