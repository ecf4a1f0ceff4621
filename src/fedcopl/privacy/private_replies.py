"""The client's side of privacy: noise or masks on its replies, and its part in secure aggregation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ..config import RunConfig
from ..errors import CannotReply
from ..messages import (
    Adapt,
    Adapted,
    Estimate,
    Estimated,
    Evaluate,
    KeyRequest,
    KeyShares,
    PublicKeys,
    Reply,
    Request,
    Select,
    SetupKeys,
    ShareKeys,
    Train,
    Trained,
    Unmask,
    Unmasked,
    digest,
)
from ..plurals import counted
from .mask_session import Session, needed
from .masked_layout import (
    COUNT_BITS,
    NO_HOLDOUT_SUMS,
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

_SummedRequest = Adapt | Estimate | Train
"""A request whose replies are summed over the clients."""
_SHORTEST_SECRET = 16  # bytes
_FEWEST_STEPS = 8  # of the grid in a standard deviation: from about 2 on, parts of the noise add up as one would


@dataclass(frozen=True)
class NoisyQueries:
    """The reply with noise that a client sent in a round; an equal request gets the same reply."""

    round: int
    request_digest: str
    values: bytes

    def to_bytes(self) -> bytes:
        return f"{self.round} {self.request_digest}\n".encode() + self.values

    @classmethod
    def from_bytes(cls, stored: bytes) -> "NoisyQueries":
        """Restore a record written by `to_bytes`."""
        head, values = stored.split(b"\n", 1)
        round, request_digest = head.decode().split()
        return cls(int(round), request_digest, values)


@dataclass(frozen=True)
class Secrets:
    """A client's private state: keys, sent noisy replies, pinned members and totals. It is never sent."""

    session: Session | None = None  # the secure aggregation that is under way
    spent: tuple[bytes, ...] = ()  # digests of the keys of finished sums, which must not be used again
    history: str = ""  # with noise: digest of all requests that its numbers depend on
    noisy_replies: Mapping[str, NoisyQueries] = field(
        default_factory=dict
    )  # by kind of request, if the client adds all of the noise
    members: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # by kind of request, of its first unmasked sum: all later ones have the same
    prior_totals: tuple[bytes, ...] = ()  # digests of the totals of the priors' steps: a restart must repeat them


@dataclass(frozen=True)
class PrivateReplies:
    """Adds noise or masks to a client's replies, by the settings of the run and a secret of its own."""

    config: RunConfig
    secret: bytes = b""  # seed of the noise: anyone who knows it can remove the noise
    repeatable: bool = False  # in a simulation: a repeated round has the same noise, also in secure aggregation

    def remember(self, request: Request, secrets: Secrets) -> Secrets:
        """Update the history of requests: equal ones get equal noise, so that repeating one reveals nothing new."""
        if isinstance(request, Evaluate):  # a secure aggregation in progress has ended without this client
            secrets = replace(secrets, session=None)
        if not self.config.privacy.noise_multiplier or not isinstance(request, Adapt | Estimate | Select | Train):
            return secrets
        if not isinstance(request, Select):
            self._refuse_more(request, secrets)
        before = secrets.history or sha256(self.config.to_toml().encode()).hexdigest()
        return replace(secrets, history=sha256(f"{before} {digest(request)}".encode()).hexdigest())

    def _refuse_more(self, request: _SummedRequest, secrets: Secrets) -> None:
        """Raise CannotReply where one more reply would reveal more than the accountant of the run counts."""
        config, kind, number = self.config, _kind_of(request), request.round + 1
        if request.round >= config.rounds:
            raise CannotReply(f"{kind} request in round {number}, but the run has {counted(config.rounds, 'round')}")
        if isinstance(request, Estimate) and request.round % config.labels.refresh_every:
            raise CannotReply(f"{kind} request in round {number}, which has no refresh")
        before = secrets.noisy_replies.get(kind)
        if before and before.round >= request.round and before.request_digest != digest(request):
            raise CannotReply(
                f"{kind} request in round {number} differs from the one answered in round "
                f"{before.round + 1}: with noise a client replies once per round"
            )

    def counts(self, counts: NDArray[np.int64], request: Estimate, secrets: Secrets) -> tuple[Estimated, Secrets]:
        """Return the class counts u_k with noise or masks."""
        privacy, values = self.config.privacy, counts.astype(np.float64)
        repeated = _repeated_reply(request, secrets)
        if repeated is not None:
            return Estimated(np.frombuffer(repeated, np.int64)), secrets
        if privacy.noise_multiplier:
            values = self._noised(values, privacy.count_clip, COUNT_BITS, request, secrets)
        if not privacy.secure_aggregation:
            noised = np.rint(values).astype(np.int64)
            return Estimated(noised), self._keep_noisy(request, noised.tobytes(), secrets)
        masked, secrets = self._masked(request, secrets, lambda clients: count_words(values, clients))
        return Estimated(None, masked), secrets

    def adaptation(self, sums: Values, request: Adapt, secrets: Secrets) -> tuple[Adapted, Secrets]:
        """Return the sums for the priors with noise or masks; with noise, only the logit bias is estimated."""
        privacy, repeated = self.config.privacy, _repeated_reply(request, secrets)
        if repeated is not None:
            return Adapted(np.frombuffer(repeated, np.float64)), secrets
        values = (
            self._noised(sums, privacy.count_clip, COUNT_BITS, request, secrets) if privacy.noise_multiplier else sums
        )
        if not privacy.secure_aggregation:
            return Adapted(values), self._keep_noisy(request, values.tobytes(), secrets)
        secrets = self._pin_totals(request, secrets)
        masked, secrets = self._masked(request, secrets, lambda clients: adapted_words(values, clients))
        return Adapted(None, masked), secrets

    def _pin_totals(self, request: Adapt, secrets: Secrets) -> Secrets:
        """Pin, without noise, the totals of the first prior estimation: a restarted server gets the same ones again.

        Each estimation with other totals would reveal more sums.
        """
        if self.config.privacy.noise_multiplier:
            return secrets
        first, pinned = request.step - len(request.totals), list(secrets.prior_totals)
        for step, total in enumerate(request.totals, start=first):
            total_digest = sha256(total.tobytes()).digest()
            if step < len(pinned) and pinned[step] != total_digest:
                raise CannotReply(f"the totals of step {step + 1} of the priors differ from those sent before")
            pinned[step:] = [total_digest, *pinned[step + 1 :]]
        return replace(secrets, prior_totals=tuple(pinned))

    def training(self, training: Training, request: Train, secrets: Secrets) -> tuple[Trained, Secrets]:
        """Return the trained prompts with noise or masks."""
        repeated = _repeated_reply(request, secrets)
        if repeated is not None:
            values = np.frombuffer(repeated, np.float32).astype(np.float64)
            return Trained(shaped(values, request.shared), 1, math.nan), secrets
        disclosed = (
            self._training_noised(training, request, secrets) if self.config.privacy.noise_multiplier else training
        )
        if not self.config.privacy.secure_aggregation:
            shared = disclosed.shared if disclosed is training else shaped(flat(disclosed.shared), request.shared)
            values = flat(shared).astype(np.float32)
            checked = disclosed is training and disclosed.checks != NO_HOLDOUT_SUMS
            checks = tuple(disclosed.checks) if checked else ()
            trained = Trained(shared, disclosed.examples, disclosed.loss, checks=checks)
            return trained, self._keep_noisy(request, values.tobytes(), secrets)
        batch = self.config.train.batch
        masked, secrets = self._masked(request, secrets, lambda clients: training_words(disclosed, batch, clients))
        return Trained({}, 0, math.nan, masked), secrets

    def _keep_noisy(self, request: _SummedRequest, values: bytes, secrets: Secrets) -> Secrets:
        """Keep a reply with noise, to be repeated; under secure aggregation it has other masks each time."""
        if not self.config.privacy.noise_multiplier:
            return secrets
        sent = NoisyQueries(request.round, digest(request), values)
        return replace(secrets, noisy_replies={**secrets.noisy_replies, _kind_of(request): sent})

    def _training_noised(self, training: Training, request: Train, secrets: Secrets) -> Training:
        """Add noise to the clipped update. All clients weigh the same: a weight would reveal the number of images."""
        sent = flat(request.shared)
        change = flat(training.shared) - sent
        if not np.isfinite(change).all():
            raise CannotReply("a prompt is not finite: training diverged, try a lower train.lr")
        moved = self._noised(change, self.config.privacy.update_clip, PROMPT_BITS, request, secrets)
        on_grid = np.ldexp(np.rint(np.ldexp(sent, PROMPT_BITS)), -PROMPT_BITS)
        wide = {
            name: prompt.astype(np.float64) for name, prompt in request.shared.items()
        }  # float32 would round the noise
        return Training(shaped(on_grid + moved, wide), 1, math.nan)

    def _noised(self, values: Values, clip: float, bits: int, request: _SummedRequest, secrets: Secrets) -> Values:
        """Clip values and add noise; in a secure aggregation each client adds its part of the noise."""
        from .masking import WordStream, derived  # brings cryptography, which is an extra

        if len(self.secret) < _SHORTEST_SECRET:
            raise CannotReply("noise is on, but this client has no secret to draw it from")
        sigma = self.config.privacy.noise_multiplier * clip / math.sqrt(max(len(request.peers), 1))
        if math.ldexp(sigma, bits) < _FEWEST_STEPS:
            raise CannotReply(
                "the noise is too small to be split over the clients: set a larger privacy.noise_multiplier or clip"
            )
        stream = WordStream(derived(self.secret, "noise", secrets.history, self._aggregation_name(secrets)))
        return noised(values, clip, sigma, bits, stream)

    def _aggregation_name(self, secrets: Secrets) -> str:
        """Return the name of the secure aggregation in progress, so that each one draws other noise.

        With equal noise, the difference of two sums would reveal which client dropped out.
        """
        return "" if self.repeatable or secrets.session is None else secrets.session.name.hex()

    def _masked(
        self, request: _SummedRequest, secrets: Secrets, words: Callable[[int], Words]
    ) -> tuple[Words, Secrets]:
        from .masking import mask

        if secrets.session is None or not request.peers:
            raise CannotReply("request for a reply without masks, but privacy.secure_aggregation is on")
        kind, privacy = type(request).__name__, self.config.privacy
        if set(request.peers) != set(secrets.members.get(kind, request.peers)):
            raise CannotReply(
                f"the members of the secure aggregation changed since the first {kind} request of this run"
            )
        enough = max(needed(len(secrets.session.roster), privacy.threshold), privacy.min_sites)
        numbers = words(len(request.peers))
        masked, session = mask(secrets.session, numbers, request.peers, digest(request), enough, kind)
        return masked, replace(secrets, session=session)

    def keys(self, request: KeyRequest, secrets: Secrets) -> tuple[Reply, Secrets]:
        """Reply to the key requests of secure aggregation: new keys, secret shares, shares for unmasking."""
        if not self.config.privacy.secure_aggregation:
            raise CannotReply(f"{type(request).__name__} request, but privacy.secure_aggregation is off")
        match request:
            case SetupKeys():
                return self._setup_keys(request, secrets)
            case ShareKeys():
                return self._share_keys(request, self._session(request, secrets), secrets)
            case Unmask():
                return self._unmask(request, self._session(request, secrets), secrets)

    def _setup_keys(self, request: SetupKeys, secrets: Secrets) -> tuple[PublicKeys, Secrets]:
        from .masking import public_keys, setup_keys

        session = setup_keys(request.session)
        return PublicKeys(public_keys(session)), replace(secrets, session=session)

    def _share_keys(self, request: ShareKeys, session: Session, secrets: Secrets) -> tuple[KeyShares, Secrets]:
        from .masking import share_keys

        few = self.config.privacy.min_sites
        if len(request.keys) < few:
            raise CannotReply(
                f"request for a sum over {counted(len(request.keys), 'client')}; privacy.min_sites is {few}"
            )
        sealed, session = share_keys(session, request.keys, needed(len(request.keys), self.config.privacy.threshold))
        return KeyShares(sealed), replace(secrets, session=session)

    def _unmask(self, request: Unmask, session: Session, secrets: Secrets) -> tuple[Unmasked, Secrets]:
        from .masking import spending, unmask

        spent = spending(session)
        if spent in secrets.spent:
            raise CannotReply("second Unmask request for the same secure aggregation")
        shares, members = unmask(session, request.sealed), {**secrets.members, session.kind: session.peers}
        return Unmasked(shares), replace(secrets, session=None, spent=(*secrets.spent, spent), members=members)

    def _session(self, request: ShareKeys | Unmask, secrets: Secrets) -> Session:
        if secrets.session is None or secrets.session.name != request.session:
            raise CannotReply("request for a secure aggregation that has ended, or without keys")
        return secrets.session


def _kind_of(request: _SummedRequest) -> str:
    """Return the kind of a request, of which there is one reply a round with noise: each step of the priors is one."""
    return f"Adapt {request.step}" if isinstance(request, Adapt) else type(request).__name__


def _repeated_reply(request: _SummedRequest, secrets: Secrets) -> bytes | None:
    """Return the reply with noise that was sent to an equal request, or None."""
    before = secrets.noisy_replies.get(_kind_of(request))
    return before.values if before and before.request_digest == digest(request) else None
