"""A finished run that another run continues, with its arrays adapted to the classes of the new run.

The new run starts from the shared prompts of the previous one, and every client of it from its own model. The first
checkpoint has both, so that later rounds do not need the folder of the previous run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from ..clip.frozen_clip import Clip
from ..config import RunConfig
from ..errors import ConfigError, RunFolderError
from ..federation.client_state import ClientState
from ..federation.learner import Prompts
from ..files import reading
from ..methods import METHODS, choose_method
from ..methods.base import Method
from .build import backbone_name
from .folder import SETTINGS, SHARED_PROMPTS, own_prompts_file, read_finished
from .record import Outcome


@dataclass(frozen=True)
class PreviousRun:
    """A finished run: its outcome and its prompts."""

    folder: Path
    outcome: Outcome
    shared: Prompts
    own: Mapping[str, Prompts]  # by client: all clients in a simulation, one at a site, none at a server

    @property
    def reference(self) -> str:
        """The name of the run and a digest of its classes and arrays, independent of the path of its folder."""
        digest = sha256("\n".join(self.outcome.classes).encode())
        for arrays in (self.shared, *(self.own[client] for client in sorted(self.own))):
            for name in sorted(arrays):
                digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode() + arrays[name].tobytes())
        return f"{self.outcome.run_id or self.outcome.name} {digest.hexdigest()[:16]}"


def read_previous_run(folder: Path) -> PreviousRun:
    """Read a finished run.

    Raises:
        RunFolderError: The folder has no finished run, or a file of it is damaged.
    """
    if not (folder / SETTINGS).is_file():
        raise RunFolderError(f"{folder}: has no run to continue: there is no {SETTINGS} in it")
    outcome = read_finished(folder)
    files = {client.name: own_prompts_file(folder, client.name) for client in outcome.clients}
    own = {client: _read_arrays(file) for client, file in files.items() if file.exists()}
    return PreviousRun(folder, outcome, _read_arrays(folder / SHARED_PROMPTS), own)


def _read_arrays(file: Path) -> Prompts:
    with reading(file, SafetensorError):
        return load(file.read_bytes())


def previous_run_name(config: RunConfig) -> str:
    """Return the name of the run that the settings continue."""
    return config.previous_run.rpartition(" ")[0]


def require_previous_run(config: RunConfig, previous: PreviousRun | None) -> None:
    """Raise ConfigError if the settings continue a run and its folder is not given."""
    if config.previous_run and previous is None:
        raise ConfigError(
            f"previous_run: these settings continue the run {previous_run_name(config)}; name its folder with --from"
        )


def with_reference(config: RunConfig, previous: PreviousRun | None) -> RunConfig:
    """Return the settings with a reference to the previous run, if any; ConfigError if they name another run."""
    if previous is None:
        return config
    if config.previous_run not in ("", previous.reference):
        raise ConfigError(
            f"previous_run: these settings continue {config.previous_run!r}, but {previous.folder} has "
            f"{previous.reference!r}; give the other folder to --from"
        )
    return config.model_copy(update={"previous_run": previous.reference})


def adapt_previous_run(
    previous: PreviousRun, config: RunConfig, clip: Clip, classes: Sequence[str], start: Prompts
) -> PreviousRun:
    """Adapt the arrays of a previous run to the classes of a new one.

    Args:
        previous: The finished run.
        clip: Its frozen CLIP.
        classes: Its classes: those of the previous run in any order, and new ones.
        start: Its initial arrays, used for new classes.

    Raises:
        ConfigError: Method, model, shapes or classes do not match.
    """
    method = choose_method(config)
    _check_compatible(previous, config, method, clip)
    rows = _ClassRows(method, clip, previous.outcome.classes, tuple(classes), start, str(previous.folder))
    shared = {name: rows.convert(name, previous.shared[name]) for name in method.shared()}
    own = {client: rows.convert_all(arrays) for client, arrays in previous.own.items()}
    return replace(previous, shared=shared, own=own)


def _check_compatible(previous: PreviousRun, config: RunConfig, method: Method, clip: Clip) -> None:
    outcome, folder = previous.outcome, previous.folder
    if not method.trains:
        raise ConfigError(f"previous_run: method={config.method} does not train, so it cannot continue a run")
    old_method = outcome.setting("method")
    if METHODS.get(old_method) is not METHODS[config.method]:
        raise ConfigError(f"{folder}: is a run with method={old_method}, and this run has method={config.method}")
    if set(previous.shared) != set(method.shared()):
        old, new = (", ".join(sorted(names)) or "nothing" for names in (previous.shared, method.shared()))
        raise ConfigError(f"{folder}: averaged {old}, and this run averages {new}")
    old, new = outcome.backbone, backbone_name(config.model.backbone, clip)
    if old and old.split()[-1] != new.split()[-1]:  # the last part is the fingerprint
        raise ConfigError(
            f"{folder}: was trained on the model {old}, and this run has {new}; prompts fit one model only"
        )


@dataclass(frozen=True)
class _ClassRows:
    """Rearranges arrays with one row per class for another list of classes; new classes get initial values."""

    method: Method
    clip: Clip
    old_classes: tuple[str, ...]
    new_classes: tuple[str, ...]
    start: Prompts
    origin: str  # for messages

    def __post_init__(self) -> None:
        if removed := [name for name in self.old_classes if name not in self.new_classes]:
            raise ConfigError(
                f"{self.origin}: has the class {removed[0]!r}, which is missing now; classes can be added, not removed"
            )

    def convert_all(self, arrays: Prompts) -> Prompts:
        """Convert a client's own arrays; with other classes, the arrays of `class_memory` are dropped."""
        dropped = self.method.class_memory if self.old_classes != self.new_classes else ()
        return {name: self.convert(name, value) for name, value in arrays.items() if name not in dropped}

    def convert(self, name: str, value: NDArray[np.float32]) -> NDArray[np.float32]:
        """Convert one array; ConfigError if its shape is not that of the settings."""
        shapes = self.method.shapes(self.clip, len(self.old_classes))
        if name in shapes and value.shape != shapes[name]:
            raise ConfigError(
                f"{self.origin}: its prompt {name!r} has the shape {value.shape}, and these settings need "
                f"{shapes[name]}; use `model` and `options` of its settings.toml"
            )
        larger = self.method.shapes(self.clip, len(self.old_classes) + 1).get(name, value.shape)  # of one more class
        class_axis = next((axis for axis, size in enumerate(value.shape) if size != larger[axis]), None)
        if class_axis is None:
            return value
        rows = np.moveaxis(self.start[name].copy(), class_axis, 0)
        rows[[self.new_classes.index(old) for old in self.old_classes]] = np.moveaxis(value, class_axis, 0)
        return np.ascontiguousarray(np.moveaxis(rows, 0, class_axis))


def initial_states(previous: PreviousRun, start: Prompts) -> dict[str, ClientState]:
    """Return the initial state of every client of the previous run: its model at the end of that run."""
    return {
        client: ClientState(previous_model={**start, **previous.shared, **own}) for client, own in previous.own.items()
    }
