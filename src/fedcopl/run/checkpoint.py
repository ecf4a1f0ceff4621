"""The checkpoint of a run after a round: everything that `--resume` needs, in one file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import RunFolderError
from ..federation.client_state import ClientState, Tensors, add_prefix, select_prefix, state_from, state_tensors
from ..federation.server import ServerState
from ..federation.validation import ReportedCounts
from ..files import write_bytes
from ..plurals import counted
from ..priors.posterior import PosteriorModel
from .record import Outcome, read_outcome, to_plain

_CHECKPOINT = "checkpoint.safetensors"
_PLAIN_FIELDS = (
    "round",
    "classes",
    "members",
    "full_first_round",
    "neighbours",
    "width",
    "stale_rounds",
    "ever_connected",
)


@dataclass(frozen=True)
class Checkpoint:
    """The states of server and clients, and the outcome so far; a deployed server has no states of clients."""

    server: ServerState
    clients: Mapping[str, ClientState]
    outcome: Outcome


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint in place of the previous one, atomically."""
    server, clients = checkpoint.server, checkpoint.clients
    tensors = add_prefix("server/", server.shared) | add_prefix("last_good/", server.last_good or {})
    tensors |= add_prefix("", {"class_prior": server.class_prior})
    tensors |= add_prefix("prior_totals/", dict(enumerate(server.prior_totals)))
    tensors |= add_prefix("prior_model/", server.prior_model.to_arrays() if server.prior_model else {})
    for number, state in enumerate(clients.values()):
        tensors |= add_prefix(f"client/{number}/", state_tensors(state))
    for number, upload in enumerate(server.uploads.values()):
        tensors |= add_prefix(f"upload/{number}/", upload)
    tensors, duplicates = _deduplicate(tensors)
    about = {name: getattr(server, name) for name in _PLAIN_FIELDS} | {
        "duplicates": duplicates,
        "uploads": tuple(server.uploads),
        "reported_counts": {client: asdict(counts) for client, counts in server.reported_counts.items()},
        "prior_steps": len(server.prior_totals),
        "clients": tuple(clients),
    }
    # The header of a safetensors file is limited in size; the records of a long run are not.
    tensors["records"] = np.frombuffer(json.dumps(to_plain(checkpoint.outcome)).encode(), np.uint8)
    write_bytes(folder / _CHECKPOINT, save(tensors, {"about": json.dumps(about)}))


def _deduplicate(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    """Drop repeated array objects; return the others, and by each dropped name the name of the kept array.

    >>> same = np.zeros(2)
    >>> _deduplicate({"a": same, "b": same, "c": np.zeros(2)})[1]
    {'b': 'a'}
    """
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(value), name) for name, value in tensors.items()}
    kept = {name: value for name, value in tensors.items() if names[name] == name}
    return kept, {name: other for name, other in names.items() if name != other}


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the checkpoint in the folder of a run; None before the first round is finished.

    Raises:
        RunFolderError: The file is damaged.
    """
    path = folder / _CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return _restore(tensors, json.loads(file.metadata()["about"]))
    except (SafetensorError, OSError, LookupError, ValueError, TypeError) as error:
        raise RunFolderError(f"{path}: is damaged, so the run cannot be resumed: {error}") from error


def _restore(tensors: Tensors, about: dict[str, Any]) -> Checkpoint:
    tensors = tensors | {name: tensors[other] for name, other in about["duplicates"].items()}
    model = select_prefix(tensors, "prior_model/")
    plain: dict[str, Any] = {name: about[name] for name in _PLAIN_FIELDS}
    plain |= {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
    server = ServerState(
        **plain,
        shared=select_prefix(tensors, "server/"),
        uploads=_by_client(tensors, "upload/", about["uploads"]),
        prior_model=PosteriorModel.from_arrays(model) if model else None,
        prior_totals=tuple(tensors[f"prior_totals/{step}"] for step in range(about["prior_steps"])),
        last_good=select_prefix(tensors, "last_good/") or None,
        reported_counts={client: ReportedCounts(**counts) for client, counts in about["reported_counts"].items()},
        class_prior=tensors.get("class_prior"),
    )
    clients = _by_client(tensors, "client/", about["clients"])
    states = {client: state_from(arrays) for client, arrays in clients.items()}
    outcome = read_outcome(json.loads(tensors["records"].tobytes()))
    if len(outcome.rounds) != server.round:
        raise ValueError(f"it records {counted(len(outcome.rounds), 'round')} after round {server.round}")
    return Checkpoint(server, states, outcome)


def _by_client(tensors: Tensors, prefix: str, clients: list[str]) -> dict[str, Tensors]:
    """Group tensors by client; their keys have the number of the client, whose name may be any text."""
    by_number: list[Tensors] = [{} for _ in clients]
    for key, value in select_prefix(tensors, prefix).items():
        number, name = key.split("/", 1)
        by_number[int(number)][name] = value
    return dict(zip(clients, by_number, strict=True))
