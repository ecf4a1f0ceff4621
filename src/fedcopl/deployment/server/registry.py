"""Which sites may join: a folder of public keys, kept in step with the registry of Flower's SuperLink."""

from collections.abc import Iterable
from dataclasses import dataclass, field
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

from ..certificates import SiteKey

GONE = "unregistered"
ONLINE = "online"


@dataclass(frozen=True)
class Admission:
    """What has changed: names that may join now, names that may no more, and names that cannot be let in, with why."""

    new: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


class Control:
    """The Control interface of a SuperLink on this machine."""

    def __init__(self, address: str, ca: Path):
        self._client = ControlHttpClient.from_server_address(
            address, False, ca.read_bytes(), [RuntimeVersionHttpInterceptor(component_name="flwr")]
        )

    def nodes(self) -> list[Any]:
        """Flower's own records of all registered sites."""
        return [node for node in self._client.ListNodes(ListNodesRequest()).nodes_info if node.status != GONE]

    def admit(self, keys: Iterable[SiteKey]) -> Admission:
        """Register who is new, unregister who is no longer wanted. One that cannot be registered stops nobody else."""
        wanted = {(key.name, key.public) for key in keys}
        there = {(node.name, node.public_key): node.node_id for node in self.nodes()}
        left = sorted(set(there) - wanted)
        for known in left:
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=there[known]))
        why_not = {name: self._register(name, public) for name, public in sorted(wanted - set(there))}
        refused = {name: why for name, why in why_not.items() if why}
        return Admission([name for name in why_not if name not in refused], [name for name, _ in left], refused)

    def _register(self, name: str, public: bytes) -> str:
        """Why it cannot be registered; nothing if it is."""
        try:
            self._client.RegisterNode(RegisterNodeRequest(public_key=public, name=name))
        except httpx.HTTPStatusError as error:
            return " ".join(error.response.text.split())[:200] or f"status {error.response.status_code}"
        return ""

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
