"""Questions of the priors to many clients at once: a round has dozens, and each takes a small client no time at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..algorithm import FloatArray
from ..federation.adaptation import PriorState, answer_together
from ..federation.client import Client, ClientState
from ..messages import Adapt, Ask

LARGEST_TEAM = 64  # clients: with more their arrays would leave the processor's cache

Team = tuple[str, ...]
"""Clients that answer in one go."""
ToldAndKept = tuple[FloatArray | None, PriorState]
"""Sums for the server, and what stays at home."""


@dataclass(frozen=True)
class AskedTogether:
    """One question of the priors to several clients of equally many images, with what each knows of the priors."""

    ask: Adapt
    clients: Team
    priors: Sequence[PriorState]

    def of(self, everybody: Mapping[str, Client]) -> list[ToldAndKept]:
        clients = [everybody[name] for name in self.clients]
        site, least = clients[0].config.priors.site, clients[0].least_images
        return answer_together(self.ask, self.priors, [client.learner.features for client in clients], site, least)


def common_question(questions: Mapping[str, Ask], clients: Mapping[str, Client]) -> Adapt | None:
    """What all are asked, if that can be answered together: the images were looked at, and nobody hides anything."""
    ask = next(iter(questions.values()), None)
    if not isinstance(ask, Adapt) or ask.step == 0 or any(one is not ask for one in questions.values()):
        return None
    return ask if all(_is_open(clients[name]) for name in questions) else None


def _is_open(client: object) -> bool:
    """Whether it is a client itself, not somebody who speaks for one, and adds nothing to what it tells."""
    return isinstance(client, Client) and not client.config.is_private


def teams(priors: Mapping[str, PriorState], most: int) -> list[Team]:
    """Clients of equally many images, at most so many in a team."""
    alike: dict[int, list[str]] = {}
    for client, prior in priors.items():
        alike.setdefault(0 if prior.view is None else len(prior.view.log_probs), []).append(client)
    return [tuple(some[at : at + most]) for some in alike.values() for at in range(0, len(some), most)]


def with_prior(state: ClientState, prior: PriorState, *, is_new: bool) -> ClientState:
    """The state with what a client keeps; new priors end what was said about the exam through the old ones."""
    guard = replace(state.guard, standing=None) if is_new else state.guard
    return replace(state, prior=prior, guard=guard)
