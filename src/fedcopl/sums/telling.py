"""The client's side: what it lets out of its numbers, with noise or under masks, and its part in secure sums."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ..config import RunConfig
from ..core.noise import noised
from ..masking.session import Session
from ..masking.threshold import needed
from ..messages import (
    Ask,
    Estimate,
    Estimated,
    Introduce,
    Introduced,
    KeyAsk,
    Reply,
    Select,
    SharedOut,
    ShareOut,
    Train,
    Trained,
    Unmask,
    Unmasked,
    digest,
)
from .layout import COUNT_BITS, PROMPT_BITS, Training, Values, Words, count_words, flat, shaped, training_words

SHORTEST_SECRET = 16  # bytes
FEWEST_STEPS = 8  # of the grid in a standard deviation: from about 2 on, parts of the noise add up as one would


@dataclass(frozen=True)
class Secrets:
    """What a client keeps for the sake of privacy. Never sent."""

    session: Session | None = None  # the secure sum that is under way
    spent: tuple[bytes, ...] = ()  # keys of sums whose masks it has helped to take off: never again
    history: str = ""  # digest of all questions that its numbers depend on, where it adds noise


@dataclass(frozen=True)
class Teller:
    """How a client tells its numbers, by the settings of the run and a secret of its own."""

    config: RunConfig
    secret: bytes = b""  # noise is drawn from it: whoever knows it can take the noise off
    repeatable: bool = False  # a simulation: a round that is played again has the same noise, also in secure sums

    def remember(self, ask: Ask, secrets: Secrets) -> Secrets:
        """Take note of a question: the same ones get the same noise, so that asking again tells nothing new."""
        if not self.config.privacy.noise or not isinstance(ask, Estimate | Select | Train):
            return secrets
        before = secrets.history or sha256(self.config.to_toml().encode()).hexdigest()
        return replace(secrets, history=sha256(f"{before} {digest(ask)}".encode()).hexdigest())

    def counts(self, counts: NDArray[np.int64], ask: Estimate, secrets: Secrets) -> tuple[Estimated, Secrets]:
        """The class counts u_k, as the server gets them."""
        privacy, values = self.config.privacy, counts.astype(np.float64)
        if privacy.noise:
            values = self._noised(values, privacy.count_clip, COUNT_BITS, ask, secrets)
        if not privacy.secure_sums:
            return Estimated(np.rint(values).astype(np.int64)), secrets
        masked, secrets = self._masked(ask, secrets, lambda clients: count_words(values, clients))
        return Estimated(None, masked), secrets

    def training(self, training: Training, ask: Train, secrets: Secrets) -> tuple[Trained, Secrets]:
        """The prompts after training, as the server gets them."""
        told = self._training_noised(training, ask, secrets) if self.config.privacy.noise else training
        if not self.config.privacy.secure_sums:
            shared = told.shared if told is training else shaped(flat(told.shared), ask.shared)
            return Trained(shared, told.examples, told.loss), secrets
        batch = self.config.train.batch
        masked, secrets = self._masked(ask, secrets, lambda clients: training_words(told, batch, clients))
        return Trained({}, 0, math.nan, masked), secrets

    def _training_noised(self, training: Training, ask: Train, secrets: Secrets) -> Training:
        """What was sent, moved by the clipped change and by noise. All weigh the same: the weight would tell too."""
        sent = flat(ask.shared)
        change = flat(training.shared) - sent
        if not np.isfinite(change).all():
            raise ValueError("a prompt is not finite: training diverged, try a lower train.lr")
        moved = self._noised(change, self.config.privacy.update_clip, PROMPT_BITS, ask, secrets)
        on_grid = np.ldexp(np.rint(np.ldexp(sent, PROMPT_BITS)), -PROMPT_BITS)
        wide = {name: prompt.astype(np.float64) for name, prompt in ask.shared.items()}  # float32 would round the noise
        return Training(shaped(on_grid + moved, wide), 1, math.nan)

    def _noised(self, values: Values, clip: float, bits: int, ask: Estimate | Train, secrets: Secrets) -> Values:
        """Clipped values with noise; in a secure sum each of the clients adds its part of it."""
        from ..masking.crypto import WordStream, derived  # brings cryptography, which is an extra

        if len(self.secret) < SHORTEST_SECRET:
            raise ValueError("noise is switched on, but this client has no secret to draw it from")
        sigma = self.config.privacy.noise * clip / math.sqrt(max(len(ask.peers), 1))
        if math.ldexp(sigma, bits) < FEWEST_STEPS:
            raise ValueError("the noise is too small to be shared out: set a larger privacy.noise or a larger clip")
        label = (secrets.history, self._sum_of(secrets))
        return noised(values, clip, sigma, bits, WordStream(derived(self.secret, "noise", *label)))

    def _sum_of(self, secrets: Secrets) -> str:
        """Which noise: with the same in two secure sums, their difference would show whom one of them had lost."""
        return "" if self.repeatable or secrets.session is None else secrets.session.name.hex()

    def _masked(self, ask: Estimate | Train, secrets: Secrets, words: Callable[[int], Words]) -> tuple[Words, Secrets]:
        from ..masking.steps import mask

        if secrets.session is None or not ask.peers:
            raise ValueError("asked for its numbers openly, but privacy.secure_sums is switched on")
        enough = self._enough(secrets.session)
        masked, session = mask(secrets.session, words(len(ask.peers)), ask.peers, digest(ask), enough)
        return masked, replace(secrets, session=session)

    def _enough(self, session: Session) -> int:
        privacy = self.config.privacy
        return max(needed(len(session.roster), privacy.threshold), privacy.min_sites)

    def keys(self, ask: KeyAsk, secrets: Secrets) -> tuple[Reply, Secrets]:
        """Take part in a secure sum: with new keys, with shares of secrets, and at the end with shares of others'."""
        if not self.config.privacy.secure_sums:
            raise ValueError(f"asked to {type(ask).__name__}, but privacy.secure_sums is not switched on")
        match ask:
            case Introduce():
                return self._introduce(ask, secrets)
            case ShareOut():
                return self._share_out(ask, self._session(ask, secrets), secrets)
            case Unmask():
                return self._unmask(ask, self._session(ask, secrets), secrets)

    def _introduce(self, ask: Introduce, secrets: Secrets) -> tuple[Introduced, Secrets]:
        from ..masking.steps import introduce, public_keys

        session = introduce(ask.session)
        return Introduced(public_keys(session)), replace(secrets, session=session)

    def _share_out(self, ask: ShareOut, session: Session, secrets: Secrets) -> tuple[SharedOut, Secrets]:
        from ..masking.steps import share_out

        few = self.config.privacy.min_sites
        if len(ask.keys) < few:
            raise ValueError(f"asked to take part in a sum of {len(ask.keys)}; privacy.min_sites is {few}")
        sealed, session = share_out(session, ask.keys, needed(len(ask.keys), self.config.privacy.threshold))
        return SharedOut(sealed), replace(secrets, session=session)

    def _unmask(self, ask: Unmask, session: Session, secrets: Secrets) -> tuple[Unmasked, Secrets]:
        from ..masking.steps import spending, unmask

        spent = spending(session)
        if spent in secrets.spent:
            raise ValueError("asked to take off the masks of a secure sum a second time")
        shares = unmask(session, ask.survivors, ask.dropped, ask.sealed, self._enough(session))
        return Unmasked(shares), replace(secrets, session=None, spent=(*secrets.spent, spent))

    def _session(self, ask: ShareOut | Unmask, secrets: Secrets) -> Session:
        if secrets.session is None or secrets.session.name != ask.session:
            raise ValueError("asked about a secure sum that is over, or to which it was not introduced")
        return secrets.session
