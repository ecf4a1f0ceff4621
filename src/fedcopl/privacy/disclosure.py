"""The client's side: what it lets out of its numbers, with noise or under masks, and its part in secure sums."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ..config import RunConfig
from ..errors import CannotAnswer
from ..messages import (
    Adapt,
    Adapted,
    Ask,
    Estimate,
    Estimated,
    Evaluate,
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
from .mask_session import Session, needed
from .masked_layout import (
    COUNT_BITS,
    NO_CHECKS,
    PROMPT_BITS,
    Training,
    Values,
    Words,
    adapted_words,
    count_words,
    flat,
    shaped,
    training_words,
)
from .noise import noised

SummedAsk = Adapt | Estimate | Train
"""A question whose answers are added up."""
SHORTEST_SECRET = 16  # bytes
FEWEST_STEPS = 8  # of the grid in a standard deviation: from about 2 on, parts of the noise add up as one would


@dataclass(frozen=True)
class LetOut:
    """The answer with noise that a client gave in a round. Asked the same again, it says the same again."""

    round: int
    question: str  # its digest
    values: bytes

    def to_bytes(self) -> bytes:
        return f"{self.round} {self.question}\n".encode() + self.values

    @classmethod
    def from_bytes(cls, stored: bytes) -> "LetOut":
        """What `to_bytes` was given."""
        head, values = stored.split(b"\n", 1)
        round, question = head.decode().split()
        return cls(int(round), question, values)


@dataclass(frozen=True)
class Secrets:
    """What a client keeps for the sake of privacy. Never sent."""

    session: Session | None = None  # the secure sum that is under way
    spent: tuple[bytes, ...] = ()  # keys of sums whose masks it has helped to take off: never again
    history: str = ""  # digest of all questions that its numbers depend on, where it adds noise
    let_out: Mapping[str, LetOut] = field(default_factory=dict)  # by kind of question, where it adds all of the noise


@dataclass(frozen=True)
class Teller:
    """How a client tells its numbers, by the settings of the run and a secret of its own."""

    config: RunConfig
    secret: bytes = b""  # noise is drawn from it: whoever knows it can take the noise off
    repeatable: bool = False  # a simulation: a round that is played again has the same noise, also in secure sums

    def remember(self, ask: Ask, secrets: Secrets) -> Secrets:
        """Take note of a question: the same ones get the same noise, so that asking again tells nothing new."""
        if isinstance(ask, Evaluate):  # whatever sum was under way is over, and went on without this client
            secrets = replace(secrets, session=None)
        if not self.config.privacy.noise or not isinstance(ask, Adapt | Estimate | Select | Train):
            return secrets
        if not isinstance(ask, Select):
            self._refuse_more(ask, secrets)
        before = secrets.history or sha256(self.config.to_toml().encode()).hexdigest()
        return replace(secrets, history=sha256(f"{before} {digest(ask)}".encode()).hexdigest())

    def _refuse_more(self, ask: SummedAsk, secrets: Secrets) -> None:
        """CannotAnswer where one more answer would tell more than the account of the run knows of."""
        config, kind, number = self.config, kind_of(ask), ask.round + 1
        if ask.round >= config.rounds:
            raise CannotAnswer(f"asked to {kind} in round {number}, but the run has {config.rounds}")
        if isinstance(ask, Estimate) and ask.round % config.labels.refresh_every:
            raise CannotAnswer(f"asked to {kind} in round {number}, which has no refresh")
        before = secrets.let_out.get(kind)
        if before and before.round >= ask.round and before.question != digest(ask):
            raise CannotAnswer(
                f"asked to {kind} in round {number}, but has answered another such question in round "
                f"{before.round + 1}: with noise there is one answer a round"
            )

    def counts(self, counts: NDArray[np.int64], ask: Estimate, secrets: Secrets) -> tuple[Estimated, Secrets]:
        """The class counts u_k, as the server gets them."""
        privacy, values = self.config.privacy, counts.astype(np.float64)
        again = said_before(ask, secrets)
        if again is not None:
            return Estimated(np.frombuffer(again, np.int64)), secrets
        if privacy.noise:
            values = self._noised(values, privacy.count_clip, COUNT_BITS, ask, secrets)
        if not privacy.secure_sums:
            noised = np.rint(values).astype(np.int64)
            return Estimated(noised), self._remember_saying(ask, noised.tobytes(), secrets)
        masked, secrets = self._masked(ask, secrets, lambda clients: count_words(values, clients))
        return Estimated(None, masked), secrets

    def adaptation(self, sums: Values, ask: Adapt, secrets: Secrets) -> tuple[Adapted, Secrets]:
        """The sums for the priors, as the server gets them; with noise the estimation asks for the logit bias only."""
        privacy, again = self.config.privacy, said_before(ask, secrets)
        if again is not None:
            return Adapted(np.frombuffer(again, np.float64)), secrets
        values = self._noised(sums, privacy.count_clip, COUNT_BITS, ask, secrets) if privacy.noise else sums
        if not privacy.secure_sums:
            return Adapted(values), self._remember_saying(ask, values.tobytes(), secrets)
        masked, secrets = self._masked(ask, secrets, lambda clients: adapted_words(values, clients))
        return Adapted(None, masked), secrets

    def training(self, training: Training, ask: Train, secrets: Secrets) -> tuple[Trained, Secrets]:
        """The prompts after training, as the server gets them."""
        again = said_before(ask, secrets)
        if again is not None:
            values = np.frombuffer(again, np.float32).astype(np.float64)
            return Trained(shaped(values, ask.shared), 1, math.nan), secrets
        disclosed = self._training_noised(training, ask, secrets) if self.config.privacy.noise else training
        if not self.config.privacy.secure_sums:
            shared = disclosed.shared if disclosed is training else shaped(flat(disclosed.shared), ask.shared)
            values = flat(shared).astype(np.float32)
            checked = disclosed is training and disclosed.checks != NO_CHECKS
            checks = tuple(disclosed.checks) if checked else ()
            trained = Trained(shared, disclosed.examples, disclosed.loss, checks=checks)
            return trained, self._remember_saying(ask, values.tobytes(), secrets)
        batch = self.config.train.batch
        masked, secrets = self._masked(ask, secrets, lambda clients: training_words(disclosed, batch, clients))
        return Trained({}, 0, math.nan, masked), secrets

    def _remember_saying(self, ask: SummedAsk, values: bytes, secrets: Secrets) -> Secrets:
        """What has noise on it is said once a round; in a secure sum it is under other masks each time."""
        if not self.config.privacy.noise:
            return secrets
        said = LetOut(ask.round, digest(ask), values)
        return replace(secrets, let_out={**secrets.let_out, kind_of(ask): said})

    def _training_noised(self, training: Training, ask: Train, secrets: Secrets) -> Training:
        """What was sent, moved by the clipped change and by noise. All weigh the same: the weight would tell too."""
        sent = flat(ask.shared)
        change = flat(training.shared) - sent
        if not np.isfinite(change).all():
            raise CannotAnswer("a prompt is not finite: training diverged, try a lower train.lr")
        moved = self._noised(change, self.config.privacy.update_clip, PROMPT_BITS, ask, secrets)
        on_grid = np.ldexp(np.rint(np.ldexp(sent, PROMPT_BITS)), -PROMPT_BITS)
        wide = {name: prompt.astype(np.float64) for name, prompt in ask.shared.items()}  # float32 would round the noise
        return Training(shaped(on_grid + moved, wide), 1, math.nan)

    def _noised(self, values: Values, clip: float, bits: int, ask: SummedAsk, secrets: Secrets) -> Values:
        """Clipped values with noise; in a secure sum each of the clients adds its part of it."""
        from .masking import WordStream, derived  # brings cryptography, which is an extra

        if len(self.secret) < SHORTEST_SECRET:
            raise CannotAnswer("noise is switched on, but this client has no secret to draw it from")
        sigma = self.config.privacy.noise * clip / math.sqrt(max(len(ask.peers), 1))
        if math.ldexp(sigma, bits) < FEWEST_STEPS:
            raise CannotAnswer("the noise is too small to be shared out: set a larger privacy.noise or a larger clip")
        label = (secrets.history, self._sum_of(secrets))
        return noised(values, clip, sigma, bits, WordStream(derived(self.secret, "noise", *label)))

    def _sum_of(self, secrets: Secrets) -> str:
        """Which noise: with the same in two secure sums, their difference would show whom one of them had lost."""
        return "" if self.repeatable or secrets.session is None else secrets.session.name.hex()

    def _masked(self, ask: SummedAsk, secrets: Secrets, words: Callable[[int], Words]) -> tuple[Words, Secrets]:
        from .masking import mask

        if secrets.session is None or not ask.peers:
            raise CannotAnswer("asked for its numbers openly, but privacy.secure_sums is switched on")
        enough = self._enough(secrets.session)
        masked, session = mask(secrets.session, words(len(ask.peers)), ask.peers, digest(ask), enough)
        return masked, replace(secrets, session=session)

    def _enough(self, session: Session) -> int:
        privacy = self.config.privacy
        return max(needed(len(session.roster), privacy.threshold), privacy.min_sites)

    def keys(self, ask: KeyAsk, secrets: Secrets) -> tuple[Reply, Secrets]:
        """Take part in a secure sum: with new keys, with shares of secrets, and at the end with shares of others'."""
        if not self.config.privacy.secure_sums:
            raise CannotAnswer(f"asked to {type(ask).__name__}, but privacy.secure_sums is not switched on")
        match ask:
            case Introduce():
                return self._introduce(ask, secrets)
            case ShareOut():
                return self._share_out(ask, self._session(ask, secrets), secrets)
            case Unmask():
                return self._unmask(ask, self._session(ask, secrets), secrets)

    def _introduce(self, ask: Introduce, secrets: Secrets) -> tuple[Introduced, Secrets]:
        from .masking import introduce, public_keys

        session = introduce(ask.session)
        return Introduced(public_keys(session)), replace(secrets, session=session)

    def _share_out(self, ask: ShareOut, session: Session, secrets: Secrets) -> tuple[SharedOut, Secrets]:
        from .masking import share_out

        few = self.config.privacy.min_sites
        if len(ask.keys) < few:
            raise CannotAnswer(f"asked to take part in a sum of {len(ask.keys)}; privacy.min_sites is {few}")
        sealed, session = share_out(session, ask.keys, needed(len(ask.keys), self.config.privacy.threshold))
        return SharedOut(sealed), replace(secrets, session=session)

    def _unmask(self, ask: Unmask, session: Session, secrets: Secrets) -> tuple[Unmasked, Secrets]:
        from .masking import spending, unmask

        spent = spending(session)
        if spent in secrets.spent:
            raise CannotAnswer("asked to take off the masks of a secure sum a second time")
        shares = unmask(session, ask.survivors, ask.dropped, ask.sealed, self._enough(session))
        return Unmasked(shares), replace(secrets, session=None, spent=(*secrets.spent, spent))

    def _session(self, ask: ShareOut | Unmask, secrets: Secrets) -> Session:
        if secrets.session is None or secrets.session.name != ask.session:
            raise CannotAnswer("asked about a secure sum that is over, or to which it was not introduced")
        return secrets.session


def kind_of(ask: SummedAsk) -> str:
    """Of which there is one answer a round, where there is noise: each step of the priors is one of its own."""
    return f"Adapt {ask.step}" if isinstance(ask, Adapt) else type(ask).__name__


def said_before(ask: SummedAsk, secrets: Secrets) -> bytes | None:
    """What it let out when it was asked this very question, whatever it has learnt of it since."""
    before = secrets.let_out.get(kind_of(ask))
    return before.values if before and before.question == digest(ask) else None
