"""Questions to many clients at once: those of the priors, of which a round has dozens, and what wants the model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ..algorithm import FloatArray
from ..federation.adaptation import PriorState, TeamPriors, answer_together, kept_together
from ..federation.client import Answered, Client, ClientState, Steps
from ..federation.learner import Wanted
from ..messages import Adapt, Ask
from ..methods.learner import ClipLearner
from ..methods.side_by_side import LARGEST_TEAM as LARGEST_TEAM
from ..methods.side_by_side import found_for_each, see_plainly

FEWEST_TEAMS = 16  # of clients that answer side by side: or processes would wait for the last one

Team = tuple[str, ...]
"""Clients that answer in one go."""
ToldByTeam = tuple[FloatArray, TeamPriors] | list[PriorState]
"""Sums for the server, a row for each client, and what stays at home; or at the end only that, client by client."""


@dataclass(frozen=True)
class AskedTogether:
    """One question of the priors to several clients of equally many images, with what they know of the priors."""

    ask: Adapt
    clients: Team
    priors: TeamPriors

    def of(self, everybody: Mapping[str, Client]) -> ToldByTeam:
        clients = [everybody[name] for name in self.clients]
        features, first = [client.learner.features for client in clients], clients[0]
        if self.ask.wanted == "keep":
            return kept_together(self.ask, self.priors, features, first.config.priors.site)
        return answer_together(self.ask, self.priors, features, first.least_images)


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


def side_by_side(
    questions: Mapping[str, Ask], clients: Mapping[str, Client], groups: Iterable[Sequence[str]] = ()
) -> Iterator[Team]:
    """Who answers in one go, only among those of a group if there are groups.

    Nobody where there are few, or where one of them is not a client with a model itself.
    """
    size = min(LARGEST_TEAM, len(questions) // FEWEST_TEAMS)
    if size > 1 and all(_has_model(clients[name]) for name in questions):
        for group in groups or (tuple(questions),):
            yield from (tuple(group[start : start + size]) for start in range(0, len(group), size))


def _has_model(client: object) -> bool:
    return isinstance(client, Client) and isinstance(client.learner, ClipLearner)


def answered_side_by_side(
    questions: Mapping[str, Ask], states: Mapping[str, ClientState], clients: Mapping[str, Client]
) -> dict[str, Answered]:
    """What each of them answers alone, to the bit; whenever several want the model, it is asked for all of them."""
    if any(isinstance(ask, Adapt) and ask.step == 0 for ask in questions.values()):
        see_plainly([cast(ClipLearner, clients[name].learner) for name in questions])
    running = {name: clients[name].steps(ask, states[name]) for name, ask in questions.items()}
    answered: dict[str, Answered] = {}
    found: Mapping[str, Any] = dict.fromkeys(running)
    while found:
        wanted: dict[str, Wanted] = {}
        for name, what in found.items():
            _go_on(name, running[name], what, wanted, answered)
        asked = [(cast(ClipLearner, clients[name].learner), what) for name, what in wanted.items()]
        found = dict(zip(wanted, found_for_each(asked), strict=True))
    return {name: answered[name] for name in questions}


def _go_on(name: str, steps: Steps, found: Any, wanted: dict[str, Wanted], answered: dict[str, Answered]) -> None:
    """Up to the next wish, or to the answer."""
    try:
        wanted[name] = steps.send(found)
    except StopIteration as done:
        answered[name] = done.value
