"""Which sites may join: a folder of public keys, kept in step with the registry of Flower's SuperLink."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from ...errors import FederationError
from .keys import SiteKey

GONE = "unregistered"
ONLINE = "online"


class Control:
    """The Control interface of a SuperLink on this machine."""

    def __init__(self, address: str, ca: Path):
        self._client = ControlHttpClient.from_server_address(
            address, False, ca.read_bytes(), [RuntimeVersionHttpInterceptor(component_name="flwr")]
        )

    def nodes(self) -> list[Any]:
        """Flower's own records of all registered sites."""
        return [node for node in self._client.ListNodes(ListNodesRequest()).nodes_info if node.status != GONE]

    def admit(self, keys: Iterable[SiteKey]) -> tuple[list[str], list[str]]:
        """Register who is new and unregister who is no longer wanted; the names of both."""
        wanted = {(key.name, key.public) for key in keys}
        there = {(node.name, node.public_key): node.node_id for node in self.nodes()}
        left = sorted(set(there) - wanted)
        for known in left:
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=there[known]))
        new = sorted(wanted - set(there))
        for name, public in new:
            self._register(name, public)
        return [name for name, _ in new], [name for name, _ in left]

    def _register(self, name: str, public: bytes) -> None:
        try:
            self._client.RegisterNode(RegisterNodeRequest(public_key=public, name=name))
        except httpx.HTTPStatusError as error:
            raise FederationError(f"{name}: its key cannot be registered: {error.response.text[:200]}") from error

    def start_run(self, bundle: bytes) -> int:
        request = StartRunRequest()
        request.fab.content = bundle
        return int(self._client.StartRun(request).run_id)

    def traffic(self, run_id: int) -> dict[str, int]:
        """Bytes that this start of the run has sent to its sites and got from them, as the SuperLink counts them."""
        told = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id]
        return {"sent": int(told.bytes_sent), "received": int(told.bytes_recv)}

    def close(self) -> None:
        self._client.close()
