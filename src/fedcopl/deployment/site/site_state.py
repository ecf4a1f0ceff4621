"""What a site keeps on its own disk, so that neither a stop nor a repeated question changes the outcome.

    now.json                    which round, which questions were answered, in their order
    <steps>.safetensors         the state after those steps, and the last reply
    <steps>.secrets             keys of secure aggregation, and noisy replies sent; of the latest step only

A step is written before its reply is sent, under a name made of all questions of the round so far. A question asked
again is answered with the reply on disk; a server that was restarted plays its round again and meets the same steps,
or, where others answered differently, leaves the old path at the first question that differs. A stop between two
writes leaves a step that nobody points to: it is made again, with the same bits.

A server could use this to take a site back on purpose. What the site learnt may be taken back; what the keys of a
secure aggregation were used for, and what was let out with noise, may not, and continues from the latest step. So no
other step has any use for keys, and those of a sum that is over are gone from the disk. Nobody else may read here.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import cast

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from ...errors import RunFolderError
from ...federation.client_state import ClientState
from ...federation.state_arrays import (
    Tensors,
    below,
    secret_tensors,
    secrets_from,
    state_from,
    state_tensors,
    taken_back,
)
from ...files import TEMPORARY, make_private_folder, write_private
from ...messages import Evaluated, Reply, Request, digest
from ...privacy.private_replies import Secrets
from ..wire.message_format import Packed, pack, unpack
from ..wire.terms import Refused
from .order import Turn, model_of, turn_of

NOW, SEED = "now.json", "seed"
STEP, SECRETS = ".safetensors", ".secrets"


@dataclass(frozen=True)
class SiteStep:
    """Where a site stands in a run. Steps are named by the digest of the round's questions up to them."""

    attempt: int = 0  # of the server
    round: int = -1
    base: str = ""  # the step that the round began with, of an earlier round; none: a fresh state
    path: tuple[str, ...] = ()  # this round's questions in this attempt, by digest
    steps: tuple[str, ...] = ()  # all steps of this round on disk, of every attempt
    latest: str = ""  # the step that was worked out last, of whatever attempt
    asked: tuple[Turn, ...] = ()  # what the questions of `path` were
    made: tuple[Turn, ...] = ()  # what those of `steps` were
    model: str = ""  # digest of the prompts that the round begins with, in every attempt

    @property
    def last(self) -> str:
        return _step_name(self.path) if self.path else self.base

    def at(self, attempt: int, round: int) -> "SiteStep":
        """Where a question of this attempt and round finds the site; an older one finds nobody."""
        if round < self.round or attempt < self.attempt:
            raise Refused(
                f"an old question, of round {round + 1} and start {attempt} of the server: "
                f"this site is at round {self.round + 1} and start {self.attempt}"
            )
        if round > self.round:
            return SiteStep(attempt, round, base=self.last, latest=self.latest)
        return self if attempt == self.attempt else replace(self, attempt=attempt, path=(), asked=())

    def made_step(self, step: str, request: Request) -> "SiteStep":
        """With one more step on disk."""
        return replace(self, steps=(*self.steps, step), made=(*self.made, turn_of(request)), latest=step)

    def answered(self, question: str, request: Request) -> "SiteStep":
        """With one more question behind it."""
        model = self.model or model_of(request)
        return replace(self, path=(*self.path, question), asked=(*self.asked, turn_of(request)), model=model)


Compute = Callable[[SiteStep, ClientState], tuple[Reply, ClientState]]
"""Computes the reply to a new request at this step; the state before it, and after."""


def _step_name(path: tuple[str, ...]) -> str:
    return sha256("".join(path).encode()).hexdigest()[:32]


class SiteState:
    """One site's states in one run."""

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def has_begun(self) -> bool:
        return (self.folder / NOW).exists()

    def seed(self, state: ClientState) -> None:
        """Begin with a state that was kept elsewhere."""
        self._write(SEED, state, Evaluated(0, 0))
        self._move_to(SiteStep(base=SEED, latest=SEED))

    def handle(self, request: Request, attempt: int, compute: Compute) -> Reply:
        """The reply to a request: from disk if it was answered before, else computed, and written to disk first."""
        at, question = self.step().at(attempt, request.round), digest(request)
        if question in at.path:
            return self._read(_step_name(at.path[: at.path.index(question) + 1]))[1]
        step = _step_name((*at.path, question))
        if step in at.steps:
            reply = self._read(step)[1]
        else:
            reply, state = compute(at, self.state(at))
            self._write(step, state, reply)
            at = at.made_step(step, request)
        self._move_to(at.answered(question, request))
        return reply

    def step(self) -> SiteStep:
        """Where the site stands."""
        if not self.has_begun:
            return SiteStep()
        try:
            kept = json.loads((self.folder / NOW).read_text(encoding="utf-8"))
            turns = {name: tuple(Turn(*turn) for turn in kept[name]) for name in ("asked", "made")}
            return SiteStep(**kept | {name: tuple(kept[name]) for name in ("path", "steps")} | turns)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(f"{self.folder / NOW}: is damaged: {error}") from error

    def state(self, at: SiteStep | None = None) -> ClientState:
        """What this site keeps to itself, as of its last answer."""
        at = at or self.step()
        state = self._read(at.last)[0] if at.last else ClientState()
        return taken_back(state, ClientState(secrets=self._secrets(at.latest))) if at.latest else state

    def _move_to(self, step: SiteStep) -> None:
        make_private_folder(self.folder)
        write_private(self.folder / NOW, json.dumps(asdict(step)).encode())
        needed = {f"{name}{STEP}" for name in (step.base, *step.steps)} | {f"{step.latest}{SECRETS}"}
        for file in self.folder.iterdir():
            if file.suffix in {STEP, SECRETS, TEMPORARY} and file.name not in needed:
                with suppress(OSError):  # the next step tries again
                    file.unlink()

    def _write(self, step: str, state: ClientState, reply: Reply) -> None:
        packed = pack(reply)
        without = replace(state, secrets=Secrets(history=state.secrets.history))
        tensors: Tensors = {f"state/{name}": value for name, value in state_tensors(without).items()}
        tensors |= {f"reply/{number}": array for number, array in enumerate(packed.arrays)}
        make_private_folder(self.folder)
        write_private(self.folder / f"{step}{SECRETS}", save(secret_tensors(state.secrets)))
        write_private(self.folder / f"{step}{STEP}", save(tensors, {"kind": packed.kind, "tree": packed.tree}))

    def _secrets(self, step: str) -> Secrets:
        file = self.folder / f"{step}{SECRETS}"
        try:
            return secrets_from(load(file.read_bytes()))
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise RunFolderError(f"{file}: is damaged: {error}") from error

    def _read(self, step: str) -> tuple[ClientState, Reply]:
        file = self.folder / f"{step}{STEP}"
        try:
            with safe_open(file, framework="numpy") as opened:
                tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118, it is no dict
                about = opened.metadata()
            arrays = below(tensors, "reply/")
            packed = Packed(about["kind"], about["tree"], tuple(arrays[str(i)] for i in range(len(arrays))))
            return state_from(below(tensors, "state/")), cast(Reply, unpack(packed))
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise RunFolderError(f"{file}: is damaged: {error}") from error
