"""The client's side of privacy: noise and masks on its replies, and the key exchange of secure aggregation."""

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
    Unmasked,
    digest,
)
from ..plurals import counted
from .mask_session import Session, unmask_threshold
from .masked_layout import (
    COUNT_BITS,
    NO_HOLDOUT_SUMS,
    PROMPT_BITS,
    Training,
    Values,
    Words,
    encode_counts,
    encode_sums,
    encode_training,
    flatten,
    unflatten,
)
from .noise import add_noise

_SummedRequest = Adapt | Estimate | Train
"""A request whose replies are summed over the clients."""
_SHORTEST_SECRET = 16  # bytes
_FEWEST_STEPS = 8  # of the grid per standard deviation; from about 2 on, a sum of discrete Gaussians is one as well


@dataclass(frozen=True)
class NoisyReply:
    """A reply with noise; the client repeats it for an equal request."""

    round: int
    request_digest: str
    values: bytes

    def to_bytes(self) -> bytes:
        return f"{self.round} {self.request_digest}\n".encode() + self.values

    @classmethod
    def from_bytes(cls, stored: bytes) -> "NoisyReply":
        head, values = stored.split(b"\n", 1)
        round, request_digest = head.decode().split()
        return cls(int(round), request_digest, values)


@dataclass(frozen=True)
class Secrets:
    """A client's keys, digests and noisy replies, kept between requests. Never sent."""

    session: Session | None = None  # the secure aggregation in progress
    used_keys: tuple[bytes, ...] = ()  # digests of the keys of finished sums, which must not be used again
    history: str = ""  # with noise: digest of all requests that its numbers depend on
    noisy_replies: Mapping[str, NoisyReply] = field(default_factory=dict)  # the last one by kind of request
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of all sums by kind of request
    prior_totals: tuple[bytes, ...] = ()  # digests of the totals of the prior estimation, which cannot change


@dataclass(frozen=True)
class PrivateReplies:
    """Adds noise and masks to a client's replies, as `privacy` in the settings says."""

    config: RunConfig
    secret: bytes = b""  # seed of the noise
    repeatable: bool = False  # simulation only: a repeated round has the same noise, also in secure aggregation

    def remember(self, request: Request, secrets: Secrets) -> Secrets:
        """With noise, add a request to the history, which seeds the noise: a repeated request gets the same noise."""
        if isinstance(request, Evaluate):  # an unfinished secure aggregation has ended without this client
            secrets = replace(secrets, session=None)
        if not self.config.privacy.noise_multiplier or not isinstance(request, Adapt | Estimate | Select | Train):
            return secrets
        if not isinstance(request, Select):
            self._refuse_unplanned(request, secrets)
        history = secrets.history or sha256(self.config.to_toml().encode()).hexdigest()
        return replace(secrets, history=sha256(f"{history} {digest(request)}".encode()).hexdigest())

    def _refuse_unplanned(self, request: _SummedRequest, secrets: Secrets) -> None:
        """Raise CannotReply if one more reply is not among the releases that the accountant counts."""
        config, kind, number = self.config, _kind_of(request), request.round + 1
        if request.round >= config.rounds:
            raise CannotReply(f"{kind} request in round {number}, but the run has {counted(config.rounds, 'round')}")
        if isinstance(request, Estimate) and request.round % config.labels.refresh_every:
            raise CannotReply(f"{kind} request in round {number}, in which labels are not refreshed")
        last = secrets.noisy_replies.get(kind)
        if last and last.round >= request.round and last.request_digest != digest(request):
            raise CannotReply(
                f"{kind} request in round {number} differs from the earlier one in round {last.round + 1}: "
                "with noise a client replies once per round"
            )

    def counts(self, counts: NDArray[np.int64], request: Estimate, secrets: Secrets) -> tuple[Estimated, Secrets]:
        """Return the reply to `Estimate`: u_k, plain, noisy or masked; an equal request gets the stored noisy reply."""
        privacy, values = self.config.privacy, counts.astype(np.float64)
        repeated = _repeated_reply(request, secrets)
        if repeated is not None:
            return Estimated(np.frombuffer(repeated, np.int64)), secrets
        if privacy.noise_multiplier:
            values = self._noised(values, privacy.count_clip, COUNT_BITS, request, secrets)
        if not privacy.secure_aggregation:
            rounded = np.rint(values).astype(np.int64)
            return Estimated(rounded), self._store_noisy(request, rounded.tobytes(), secrets)
        masked, secrets = self._masked(request, secrets, lambda clients: encode_counts(values, clients))
        return Estimated(None, masked), secrets

    def adaptation(self, sums: Values, request: Adapt, secrets: Secrets) -> tuple[Adapted, Secrets]:
        """Return the reply to `Adapt`: sums, plain, noisy or masked; an equal request gets the stored noisy reply."""
        privacy, values, repeated = self.config.privacy, sums, _repeated_reply(request, secrets)
        if repeated is not None:
            return Adapted(np.frombuffer(repeated, np.float64)), secrets
        if privacy.noise_multiplier:
            values = self._noised(sums, privacy.count_clip, COUNT_BITS, request, secrets)
        if not privacy.secure_aggregation:
            return Adapted(values), self._store_noisy(request, values.tobytes(), secrets)
        secrets = self._pin_totals(request, secrets)
        masked, secrets = self._masked(request, secrets, lambda clients: encode_sums(values, clients))
        return Adapted(None, masked), secrets

    def _pin_totals(self, request: Adapt, secrets: Secrets) -> Secrets:
        """Keep the digests of a request's totals; refuse other totals later, because they would reveal more sums.

        With noise, the accounting limits the number of sums instead.
        """
        if self.config.privacy.noise_multiplier:
            return secrets
        first_step, pinned = request.step - len(request.totals), list(secrets.prior_totals)
        for step, total in enumerate(request.totals, start=first_step):
            total_digest = sha256(total.tobytes()).digest()
            if step < len(pinned) and pinned[step] != total_digest:
                raise CannotReply(f"prior estimation, step {step + 1}: the totals differ from those sent before")
            pinned[step:] = [total_digest, *pinned[step + 1 :]]  # appends it, or replaces it by itself
        return replace(secrets, prior_totals=tuple(pinned))

    def training(self, training: Training, request: Train, secrets: Secrets) -> tuple[Trained, Secrets]:
        """Return the reply to `Train`: plain, noisy or masked; an equal request gets the stored noisy reply again."""
        repeated = _repeated_reply(request, secrets)
        if repeated is not None:
            values = np.frombuffer(repeated, np.float32).astype(np.float64)
            return Trained(unflatten(values, request.shared), 1, math.nan), secrets
        if self.config.privacy.noise_multiplier:
            training = self._noised_training(training, request, secrets)
        if self.config.privacy.secure_aggregation:
            batch = self.config.train.batch
            masked, secrets = self._masked(request, secrets, lambda clients: encode_training(training, batch, clients))
            return Trained({}, 0, math.nan, masked), secrets
        if not self.config.privacy.noise_multiplier:
            checks = () if training.checks == NO_HOLDOUT_SUMS else tuple(training.checks)
            return Trained(training.shared, training.examples, training.loss, checks=checks), secrets
        shared = unflatten(flatten(training.shared), request.shared)
        trained = Trained(shared, training.examples, training.loss)
        return trained, self._store_noisy(request, flatten(shared).astype(np.float32).tobytes(), secrets)

    def _store_noisy(self, request: _SummedRequest, values: bytes, secrets: Secrets) -> Secrets:
        """Store a reply with noise, so that an equal request gets it again."""
        if not self.config.privacy.noise_multiplier:
            return secrets
        sent = NoisyReply(request.round, digest(request), values)
        return replace(secrets, noisy_replies={**secrets.noisy_replies, _kind_of(request): sent})

    def _noised_training(self, training: Training, request: Train, secrets: Secrets) -> Training:
        """Clip the update and add noise. Every client has the weight 1, which does not reveal its number of images."""
        sent = flatten(request.shared)
        update = flatten(training.shared) - sent
        if not np.isfinite(update).all():
            raise CannotReply("a prompt is not finite: training diverged, try a lower train.lr")
        noisy_update = self._noised(update, self.config.privacy.update_clip, PROMPT_BITS, request, secrets)
        on_grid = np.ldexp(np.rint(np.ldexp(sent, PROMPT_BITS)), -PROMPT_BITS)
        in_float64 = {name: prompt.astype(np.float64) for name, prompt in request.shared.items()}  # not rounded
        return Training(unflatten(on_grid + noisy_update, in_float64), 1, math.nan)

    def _noised(self, values: Values, clip: float, bits: int, request: _SummedRequest, secrets: Secrets) -> Values:
        """Clip values and add noise; in a secure aggregation each of n clients adds 1/n of its variance."""
        from .masking import WordStream, derive_key  # brings cryptography, which is an extra

        if len(self.secret) < _SHORTEST_SECRET:
            raise CannotReply(f"noise is on, but this client has no secret of at least {_SHORTEST_SECRET} bytes")
        sigma = self.config.privacy.noise_multiplier * clip / math.sqrt(max(len(request.peers), 1))
        if math.ldexp(sigma, bits) < _FEWEST_STEPS:
            raise CannotReply(
                "the noise is too small to be split over the clients: set a larger privacy.noise_multiplier, "
                "privacy.count_clip or privacy.update_clip"
            )
        stream = WordStream(derive_key(self.secret, "noise", secrets.history, self._aggregation_name(secrets)))
        return add_noise(values, clip, sigma, bits, stream)

    def _aggregation_name(self, secrets: Secrets) -> str:
        """Return the name of the secure aggregation in progress, which makes its noise differ from that of others.

        With equal noise, the difference of two sums would be the numbers of a client that dropped out.
        """
        return "" if self.repeatable or secrets.session is None else secrets.session.name.hex()

    def _masked(
        self, request: _SummedRequest, secrets: Secrets, encode: Callable[[int], Words]
    ) -> tuple[Words, Secrets]:
        """Return the masked numbers and the new secrets; `encode(n)` returns the numbers for a sum over n clients."""
        from .masking import mask

        if secrets.session is None or not request.peers:
            raise CannotReply("request for a reply without masks, but privacy.secure_aggregation is on")
        kind, privacy = type(request).__name__, self.config.privacy
        if set(request.peers) != set(secrets.members.get(kind, request.peers)):
            raise CannotReply(
                f"the members of the secure aggregation changed since the first {kind} request of this run"
            )
        min_peers = max(unmask_threshold(len(secrets.session.roster), privacy.threshold), privacy.min_sites)
        numbers = encode(len(request.peers))
        masked, session = mask(secrets.session, numbers, request.peers, digest(request), min_peers, kind)
        return masked, replace(secrets, session=session)

    def key_exchange(self, request: KeyRequest, secrets: Secrets) -> tuple[Reply, Secrets]:
        """Reply to the key requests of secure aggregation: new keys, secret shares, shares for unmasking."""
        from .masking import key_digest, public_keys, setup_keys, share_keys, unmask  # cryptography is an extra

        privacy, session = self.config.privacy, secrets.session
        if not privacy.secure_aggregation:
            raise CannotReply(f"{type(request).__name__} request, but privacy.secure_aggregation is off")
        if isinstance(request, SetupKeys):
            session = setup_keys(request.session)
            return PublicKeys(public_keys(session)), replace(secrets, session=session)
        if session is None or session.name != request.session:
            raise CannotReply("request for a secure aggregation that has ended, or for which this client has no keys")
        if isinstance(request, ShareKeys):
            clients = len(request.keys)
            if clients < privacy.min_sites:
                raise CannotReply(
                    f"request for a sum over {counted(clients, 'client')}; privacy.min_sites is {privacy.min_sites}"
                )
            sealed, session = share_keys(session, request.keys, unmask_threshold(clients, privacy.threshold))
            return KeyShares(sealed), replace(secrets, session=session)
        used_key = key_digest(session)
        if used_key in secrets.used_keys:
            raise CannotReply("second Unmask request for the same secure aggregation")
        shares, members = unmask(session, request.sealed), {**secrets.members, session.kind: session.peers}
        used_keys = (*secrets.used_keys, used_key)
        return Unmasked(shares), replace(secrets, session=None, used_keys=used_keys, members=members)


def _kind_of(request: _SummedRequest) -> str:
    """Return a request's type, for Adapt with the step: with noise a client replies once per round to each kind."""
    return f"Adapt {request.step}" if isinstance(request, Adapt) else type(request).__name__


def _repeated_reply(request: _SummedRequest, secrets: Secrets) -> bytes | None:
    """Return the bytes of the noisy reply that was sent to an equal request; None if there was none."""
    stored = secrets.noisy_replies.get(_kind_of(request))
    return stored.values if stored and stored.request_digest == digest(request) else None
