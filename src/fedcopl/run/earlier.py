"""A finished run that another one goes on from: what it left behind, fitted to the new run's classes.

The new run begins from the shared prompts, and every client that is known from before with its own model. Nobody needs
the earlier folder again once a round is finished: both are in the checkpoint by then.
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
from ..methods import METHODS, choose_method
from ..methods.base import Method
from .build import backbone_name
from .folder import SETTINGS, SHARED_PROMPTS, own_prompts_file
from .reading import read_finished
from .record import Outcome


@dataclass(frozen=True)
class EarlierRun:
    """What a finished run left behind."""

    folder: Path
    outcome: Outcome
    shared: Prompts
    own: Mapping[
        str, Prompts
    ]  # of the clients known here: of all in a simulation, of itself at a site, of none at a server

    @property
    def name(self) -> str:
        """As its sites know it; a simulation's is that of its settings."""
        return self.outcome.called or self.outcome.name

    @property
    def reference(self) -> str:
        """Its name, and a digest of all that it left: the same wherever its folder lies."""
        whole = sha256("\n".join(self.outcome.classes).encode())
        for arrays in (self.shared, *(self.own[client] for client in sorted(self.own))):
            for name in sorted(arrays):
                whole.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode() + arrays[name].tobytes())
        return f"{self.name} {whole.hexdigest()[:16]}"


def read_earlier(folder: Path) -> EarlierRun:
    if not (folder / SETTINGS).is_file():
        raise RunFolderError(f"{folder}: holds no run to go on from: there is no {SETTINGS} in it")
    outcome = read_finished(folder)
    files = {client.name: own_prompts_file(folder, client.name) for client in outcome.clients}
    own = {client: _arrays(file) for client, file in files.items() if file.exists()}
    return EarlierRun(folder, outcome, _arrays(folder / SHARED_PROMPTS), own)


def _arrays(file: Path) -> Prompts:
    try:
        return load(file.read_bytes())
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{file}: cannot be read: {error}") from error


def earlier_name(config: RunConfig) -> str:
    """The name of the run that this one goes on from."""
    return config.earlier.rpartition(" ")[0]


def refuse_without(config: RunConfig, earlier: EarlierRun | None) -> None:
    """ConfigError where the settings go on from a run, and nobody says where that lies."""
    if config.earlier and earlier is None:
        raise ConfigError(
            f"earlier: these settings go on from the run {earlier_name(config)}; name its folder with --from"
        )


def noted(config: RunConfig, earlier: EarlierRun | None) -> RunConfig:
    """The settings with a note of where the run goes on from; ConfigError where they name another run."""
    if earlier is None:
        return config
    if config.earlier not in ("", earlier.reference):
        raise ConfigError(
            f"earlier: these settings go on from {config.earlier!r}, and {earlier.folder} holds {earlier.reference!r}"
        )
    return config.model_copy(update={"earlier": earlier.reference})


def fitted(earlier: EarlierRun, config: RunConfig, clip: Clip, classes: Sequence[str], start: Prompts) -> EarlierRun:
    """The same for a run with these settings and classes; ConfigError, in one line, where it does not fit."""
    method = choose_method(config)
    _refuse_another_kind(earlier, config, method, clip)
    growing = ClassRows(method, clip, earlier.outcome.classes, tuple(classes), start, str(earlier.folder))
    shared = {name: growing.fit(name, earlier.shared[name]) for name in method.shared()}
    own = {client: growing.fit_all(arrays) for client, arrays in earlier.own.items()}
    return replace(earlier, shared=shared, own=own)


def _refuse_another_kind(earlier: EarlierRun, config: RunConfig, method: Method, clip: Clip) -> None:
    outcome, folder = earlier.outcome, earlier.folder
    if not method.trains:
        raise ConfigError(f"earlier: method={config.method} trains nothing, so it cannot go on from a run")
    before = outcome.setting("method")
    if METHODS.get(before) is not METHODS[config.method]:
        raise ConfigError(f"{folder}: was a run with method={before}, and this one has method={config.method}")
    if set(earlier.shared) != set(method.shared()):
        had, wanted = (", ".join(sorted(names)) or "nothing" for names in (earlier.shared, method.shared()))
        raise ConfigError(f"{folder}: averaged {had}, and this run averages {wanted}")
    was, now = outcome.backbone, backbone_name(config.model.backbone, clip)
    if was and was.split()[-1] != now.split()[-1]:
        raise ConfigError(
            f"{folder}: was made with the model {was}, and this run has {now}; prompts fit one model only"
        )


@dataclass(frozen=True)
class ClassRows:
    """Arrays with a part for each class, for another list of classes: by name, a new class as everything starts."""

    method: Method
    clip: Clip
    before: tuple[str, ...]
    now: tuple[str, ...]
    start: Prompts
    whose: str

    def __post_init__(self) -> None:
        gone = [name for name in self.before if name not in self.now]
        if gone:
            raise ConfigError(
                f"{self.whose}: knows the class {gone[0]!r}, which is missing now; classes can be added, not removed"
            )

    def fit_all(self, arrays: Prompts) -> Prompts:
        """A client's own; what it only remembers of its images is left behind where the classes are others."""
        forgotten = self.method.remembers_by_class if self.before != self.now else ()
        return {name: self.fit(name, value) for name, value in arrays.items() if name not in forgotten}

    def fit(self, name: str, value: NDArray[np.float32]) -> NDArray[np.float32]:
        shapes = self.method.shapes(self.clip, len(self.before))
        if name in shapes and value.shape != shapes[name]:
            raise ConfigError(
                f"{self.whose}: its prompt {name!r} is of shape {value.shape}, and these settings want "
                f"{shapes[name]}; take `model` and `options` of its settings.toml"
            )
        more = self.method.shapes(self.clip, len(self.before) + 1)
        axes = [
            axis for axis, (one, other) in enumerate(zip(value.shape, more.get(name, ()), strict=False)) if one != other
        ]
        if name not in shapes or not axes:
            return value
        whole = np.moveaxis(self.start[name].copy(), axes[0], 0)
        whole[[self.now.index(known) for known in self.before]] = np.moveaxis(value, axes[0], 0)
        return np.ascontiguousarray(np.moveaxis(whole, 0, axes[0]))


def begun_states(earlier: EarlierRun, start: Prompts) -> dict[str, ClientState]:
    """Every client that is known from before, with its whole model."""
    return {client: ClientState(begun={**start, **earlier.shared, **own}) for client, own in earlier.own.items()}
