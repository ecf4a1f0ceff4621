"""Transport to the clients of a simulation, which run in this process or in a pool of workers."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import ClientFailed
from ..federation.client import Client, ReplyAndState
from ..federation.client_state import ClientState
from ..messages import Estimate, KeyRequest, Reply, Request, Train
from ..run.progress_reporter import ProgressReporter, SilentReporter
from ..run.pseudo_labels import write_labels
from .worker_pool import WorkerContext, WorkerFailed, WorkerPool


class LocalTransport:
    """Holds every client's state; a client trains the same whether it is served first or last.

    Args:
        clients: All clients by name.
        states: Their states, where a run is resumed or continued.
        progress: Notified of every reply.
        folder: The run's folder, where the pseudo labels of each refresh are written.
        pool: Workers whose context has the clients; None: this process serves them.
    """

    least = 1

    def __init__(
        self,
        clients: Mapping[str, Client],
        states: Mapping[str, ClientState] | None = None,
        progress: ProgressReporter | None = None,
        folder: Path | None = None,
        pool: WorkerPool | None = None,
    ):
        self._clients = dict(clients)
        self.states = {name: ClientState() for name in clients} | dict(states or {})
        self._progress = progress or SilentReporter()
        self._folder, self._pool = folder, pool
        self._seconds: dict[str, float] = {}

    def clients(self) -> tuple[str, ...]:
        """Return the names of all clients."""
        return tuple(self._clients)

    def request(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        """Send a request of one kind to each of some clients, and return their replies in the same order.

        Raises:
            ClientFailed: A client raised an error, or its worker died twice.
        """
        began = time.perf_counter()
        served: dict[str, ReplyAndState] = {}

        def done(client: str) -> None:
            if not isinstance(requests[client], KeyRequest):
                self._progress.answered(client, requests[client])

        if self._pool is None:
            for client, request in requests.items():
                try:
                    served[client] = self._clients[client].handle(request, self.states[client])
                except Exception as error:
                    raise ClientFailed(client, type(request).__name__, request.round, error) from error
                done(client)
        else:
            jobs = {client: (_handle, request, self.states[client]) for client, request in requests.items()}
            # Only training is worth moving: another worker would have to encode the client's images again.
            steal = all(isinstance(request, Train) for request in requests.values())
            try:
                served = self._pool.run(jobs, done, steal=steal)
            except WorkerFailed as failed:
                request = requests[failed.name]
                raise ClientFailed(failed.name, type(request).__name__, request.round, failed.cause) from failed.cause
        self._served(requests, {client: state for client, (_, state) in served.items()}, began)
        return {client: reply for client, (reply, _) in served.items()}

    def _served(self, requests: Mapping[str, Request], states: Mapping[str, ClientState], began: float) -> None:
        """Keep the clients' new states, write the pseudo labels of a refresh, and count the wall time."""
        self.states |= states
        first = next(iter(requests.values()), None)
        if first is None:
            return
        kind = type(first).__name__
        self._seconds[kind] = self._seconds.get(kind, 0.0) + time.perf_counter() - began
        if isinstance(first, Estimate) and self._folder is not None:
            known = {name: state.log_probs for name, state in states.items() if state.log_probs is not None}
            agreement = {name: states[name].prior.view_agreement(own) for name, own in known.items()}
            write_labels(self._folder, first.round, known, agreement)

    def take_seconds(self) -> dict[str, float]:
        """Return the wall time of each kind of request since the last call, whatever the number of workers."""
        seconds, self._seconds = self._seconds, {}
        return seconds


def _handle(context: WorkerContext, client: str, request: Request, state: ClientState) -> ReplyAndState:
    return context.clients[client].handle(request, state)


Engine = Callable[[Path, Mapping[str, Client], Mapping[str, ClientState] | None, ProgressReporter], LocalTransport]
"""Builds the transport to the clients of a simulation."""
