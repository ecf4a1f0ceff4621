"""The files of a site: its state in each run, and a ledger over all runs.

With the state, neither a stop nor a repeated request changes the result of a run:

    now.json                    the round, and the requests that were handled, in their order
    <step>.safetensors          the state after that step, and the reply; a step is the handling of one request
    <step>.secrets              keys of secure aggregation, and noisy replies sent; of the latest step only

A step is written before its reply is sent; its name is a digest of all requests of the round so far. A repeated request
gets the reply on disk. A restarted server repeats its round and finds the same steps, or, where other sites replied
differently, leaves the old path at the first request that differs. A stop between two writes leaves a step without a
reference: it is computed again, bit-identically.

A server could use this to reset a site on purpose. Training may be reset; the used keys of a secure aggregation and the
noise that was drawn may not: they always continue from the latest step. So no other step needs keys, and the keys of a
finished aggregation are deleted. Only the owner can read the folder.

A server chooses the names of its runs. The ledger, `ledger.json`, counts runs whatever their names, and whether or not
their folders still exist: when each began, and the privacy budget that it spent.
"""

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal, cast

from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from ...config import RunConfig
from ...federation.client_state import (
    ClientState,
    Tensors,
    rewind,
    secret_tensors,
    secrets_from,
    select_prefix,
    state_from,
    state_tensors,
)
from ...federation.prior_estimation import prior_steps
from ...files import TEMPORARY, make_private_folder, reading, write_private
from ...labelers import choose_labeler
from ...messages import Adapt, Estimate, Evaluated, Reply, Request, Train, digest
from ...plurals import counted
from ...privacy.accountant import epsilon_of
from ...privacy.private_replies import Secrets
from ..message_format import Packed, pack, unpack
from ..terms import Refused
from .order import HandledRequest, handled_entry, prompts_digest

NOW = "now.json"
_SEED = "seed"
_STEP, _SECRETS = ".safetensors", ".secrets"
_LEDGER = "ledger.json"
_LEDGERS = TypeAdapter(dict[Literal["runs", "releases"], dict[str, float]])
_DAY = 24 * 3600.0
_DELTA = 1e-5  # set by the site: with one set by the server any epsilon could look small


@dataclass(frozen=True)
class SiteProgress:
    """How far a site is in a run. The name of a step is a digest of the round's requests up to it."""

    attempt: int = 0  # number of starts of the server
    round: int = -1
    base: str = ""  # last step of the earlier round from which this round began; empty: a new state
    path: tuple[str, ...] = ()  # digests of this round's requests in this attempt
    steps: tuple[str, ...] = ()  # all steps of this round on disk, of every attempt
    latest: str = ""  # the step that was computed last, in any attempt
    handled: tuple[HandledRequest, ...] = ()  # the requests of `path`
    computed: tuple[HandledRequest, ...] = ()  # the requests of `steps`
    model: str = ""  # digest of the prompts that the round begins with, in every attempt

    @property
    def last_step(self) -> str:
        return _step_name(self.path) if self.path else self.base

    def for_request(self, attempt: int, round: int) -> "SiteProgress":
        """Return the progress before a request of this attempt and round; `Refused` if either is an earlier one."""
        if round < self.round or attempt < self.attempt:
            raise Refused(
                f"an outdated request, of round {round + 1} and the server's start {attempt}: "
                f"this site has seen round {self.round + 1} and start {self.attempt}"
            )
        if round > self.round:
            return SiteProgress(attempt, round, base=self.last_step, latest=self.latest)
        return self if attempt == self.attempt else replace(self, attempt=attempt, path=(), handled=())

    def with_step(self, step: str, request: Request) -> "SiteProgress":
        """Return the progress with one more step on disk."""
        return replace(self, steps=(*self.steps, step), computed=(*self.computed, handled_entry(request)), latest=step)

    def after(self, request_digest: str, request: Request) -> "SiteProgress":
        """Return the progress after a request with this digest."""
        model = self.model or prompts_digest(request)
        handled = (*self.handled, handled_entry(request))
        return replace(self, path=(*self.path, request_digest), handled=handled, model=model)


Compute = Callable[[SiteProgress, ClientState], tuple[Reply, ClientState]]
"""Computes the reply to a new request, and the next state, from the progress and the current state."""


def _step_name(path: tuple[str, ...]) -> str:
    return sha256("".join(path).encode()).hexdigest()[:32]


class SiteState:
    """The states of one site in one run."""

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def has_begun(self) -> bool:
        return (self.folder / NOW).exists()

    def seed(self, state: ClientState) -> None:
        """Begin the run with the state at the end of an earlier run."""
        self._write_step(_SEED, state, Evaluated(0, 0))  # a step needs a reply; this one is never sent
        self._write_progress(SiteProgress(base=_SEED, latest=_SEED))

    def handle(self, request: Request, attempt: int, compute: Compute) -> Reply:
        """Return the reply to a request: from disk if it was handled before, else computed and written to disk."""
        progress, request_digest = self.progress().for_request(attempt, request.round), digest(request)
        if request_digest in progress.path:
            return self._read_step(_step_name(progress.path[: progress.path.index(request_digest) + 1]))[1]
        step = _step_name((*progress.path, request_digest))
        if step in progress.steps:
            reply = self._read_step(step)[1]
        else:
            reply, state = compute(progress, self.state(progress))
            self._write_step(step, state, reply)
            progress = progress.with_step(step, request)
        self._write_progress(progress.after(request_digest, request))
        return reply

    def progress(self) -> SiteProgress:
        """Read how far the site is in the run: the requests that it has handled and computed."""
        if not self.has_begun:
            return SiteProgress()
        with reading(self.folder / NOW):
            plain = json.loads((self.folder / NOW).read_text(encoding="utf-8"))
            entries = {name: tuple(HandledRequest(*entry) for entry in plain[name]) for name in ("handled", "computed")}
            return SiteProgress(**plain | {name: tuple(plain[name]) for name in ("path", "steps")} | entries)

    def state(self, progress: SiteProgress | None = None) -> ClientState:
        """Read the state of the client after its last reply, with the secrets of the latest step."""
        progress = progress or self.progress()
        state = self._read_step(progress.last_step)[0] if progress.last_step else ClientState()
        if not progress.latest:
            return state
        file = self.folder / f"{progress.latest}{_SECRETS}"
        with reading(file, SafetensorError):
            return rewind(state, ClientState(secrets=secrets_from(load(file.read_bytes()))))

    def _write_progress(self, progress: SiteProgress) -> None:
        """Write the progress, and delete the files of steps that it does not need."""
        make_private_folder(self.folder)
        write_private(self.folder / NOW, json.dumps(asdict(progress)).encode())
        needed = {f"{name}{_STEP}" for name in (progress.base, *progress.steps)} | {f"{progress.latest}{_SECRETS}"}
        for file in self.folder.iterdir():
            if file.suffix in {_STEP, _SECRETS, TEMPORARY} and file.name not in needed:
                with suppress(OSError):  # the next request tries again
                    file.unlink()

    def _write_step(self, step: str, state: ClientState, reply: Reply) -> None:
        packed = pack(reply)
        without_keys = replace(state, secrets=Secrets(history=state.secrets.history))  # keys: in the other file
        tensors: Tensors = {f"state/{name}": value for name, value in state_tensors(without_keys).items()}
        tensors |= {f"reply/{number}": array for number, array in enumerate(packed.arrays)}
        make_private_folder(self.folder)
        write_private(self.folder / f"{step}{_SECRETS}", save(secret_tensors(state.secrets)))
        write_private(self.folder / f"{step}{_STEP}", save(tensors, {"kind": packed.kind, "tree": packed.tree}))

    def _read_step(self, step: str) -> tuple[ClientState, Reply]:
        file = self.folder / f"{step}{_STEP}"
        with reading(file, SafetensorError), safe_open(file, framework="numpy") as opened:
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118, not a dict
            metadata, arrays = opened.metadata(), select_prefix(tensors, "reply/")
            packed = Packed(metadata["kind"], metadata["tree"], tuple(arrays[str(i)] for i in range(len(arrays))))
            return state_from(select_prefix(tensors, "state/")), cast(Reply, unpack(packed))


@dataclass(frozen=True)
class SiteLedger:
    """The begin of each run of a site, and the noise of each of its replies."""

    folder: Path
    now: Callable[[], float] = time.time

    def check_recent_runs(self, run: str, limit: float) -> None:
        """Raise `Refused` if at least `limit` other runs have begun within a day."""
        recent = [began for name, began in self._read()[0].items() if name != run and began > self.now() - _DAY]
        if len(recent) >= limit:
            raise Refused(
                f"{counted(len(recent), 'run has', 'runs have')} begun within a day, and this site's limit is {limit:g}"
            )

    def begin(self, run: str) -> None:
        """Enter a run with the current time, unless it is in the ledger."""
        runs, releases = self._read()
        self._write({run: self.now(), **runs}, releases)

    def charge(self, release: str, noise: float, budget: float) -> None:
        """Enter the noise multiplier of a reply before it is sent; `Refused` beyond the privacy budget of all runs."""
        runs, releases = self._read()
        if release in releases:
            return  # sending the same reply again costs nothing
        releases[release] = noise
        if math.isfinite(budget) and epsilon_of(releases.values(), _DELTA) > budget:
            raise Refused(f"one more reply would exceed this site's budget of epsilon {budget:g} over all runs")
        self._write(runs, releases)

    def _read(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the time of the begin of each run at this site, and the noise multiplier of each reply."""
        file = self.folder / _LEDGER
        if not file.exists():
            return {}, {}
        with reading(file):
            ledger = _LEDGERS.validate_json(file.read_bytes())
            return ledger["runs"], ledger["releases"]

    def _write(self, runs: dict[str, float], releases: dict[str, float]) -> None:
        make_private_folder(self.folder)
        write_private(self.folder / _LEDGER, json.dumps({"runs": runs, "releases": releases}, indent=1).encode())


def release_of(run: str, request: Request, config: RunConfig, session: str) -> tuple[str, float] | None:
    """Return the identifier and the noise multiplier of a reply for the ledger; None if the reply has no noise.

    The noise multiplier is that of the sum over all sites, also in a secure aggregation (`session`), where each site
    adds only a part of the noise: a sum that lacks a site cannot be unmasked.
    """
    privacy = config.privacy
    if not privacy.noise_multiplier or not isinstance(request, Adapt | Estimate | Train):
        return None
    if isinstance(request, Adapt) and request.step >= prior_steps(config):
        return None
    if isinstance(request, Estimate) and not choose_labeler(config).cooperative:
        return None
    return f"{run} {digest(request)} {session}".strip(), privacy.noise_multiplier
