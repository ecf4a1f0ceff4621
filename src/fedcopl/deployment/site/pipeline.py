"""One request at a site, from the server's message to the reply: which policies look at it, and in which order.

`replies.reply_to` writes the message to the audit log, reads it, and sets the time limit of a reply; then `respond`
applies the lists of policies below. A policy gives the reasons why the site does not reply; the first one that has any
ends the request. A reply is written to disk before it is sent. The same request again gets the reply on disk, after the
policies for every request and without the others. Last, `reply_to` writes the reply, or the refusal, to the audit log.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...federation.client import Client
from ...federation.client_state import ClientState
from ...federation.validation import Expected, validate_request
from ...messages import PublicKeys, Reply, Request, SetupKeys, ShareKeys
from ...methods import choose_method
from ...run.folder import file_name
from ..certificates import site_key
from ..wire.terms import PINNED, Refused, Terms, differences, hold_to
from .ledger import release_of
from .order import out_of_order
from .peers import Identity, Peers
from .site_state import SiteState, SiteStep

if TYPE_CHECKING:
    from .running_site import RunningSite

GIGABYTE = 10**9


@dataclass(frozen=True)
class SiteRequest:
    """One request of the server, and the site that is to reply."""

    site: "RunningSite"
    request: Request
    terms: Terms

    @property
    def folder(self) -> Path:
        """Folder of the run at this site."""
        return self.site.home.folder / "runs" / file_name(self.terms.run)

    @property
    def client(self) -> Client:
        """The client that computes the reply; built at the first request of a run, after the site's conditions."""
        return self.site.client(self.terms)

    @property
    def peers(self) -> Peers:
        home = self.site.home
        own = Identity(site_key(home.folder, home.name)[0])
        return Peers(home.folder, own, home.peers, home.consent.min_sites > 0, self.site.watch)


def compatible(request: SiteRequest) -> Iterable[str]:
    """Server and site have the same release, classes and model."""
    return differences(request.terms, request.site.classes, request.site.model)


def conditions(request: SiteRequest) -> Iterator[str]:
    """The run meets the site's consent and limits."""
    home, config = request.site.home, request.terms.config()
    yield from home.consent.objections(request.request, config)
    yield from home.limits.objections(config)


def agreement(request: SiteRequest) -> Iterator[str]:
    """For a new run there is room on the disk and within a day's number of runs, and the people have agreed to it."""
    site, run = request.site, request.terms.run
    if (request.folder / PINNED).exists():
        return
    most, runs = site.home.limits.disk, site.home.folder / "runs"
    if sum(file.stat().st_size for file in runs.rglob("*") if file.is_file()) / GIGABYTE > most:
        yield f"there is no room for another run: this site's limit is {most:g} GB"
        return
    site.ledger.refuse_more(run, site.home.limits.runs)
    objection = site.agreement.objection(run, request.terms.config())
    if objection:
        yield objection
    else:
        site.ledger.begin(run)


def valid(request: SiteRequest) -> Iterator[str]:
    """Prompts and sums in the request have the shapes of this run, and are finite."""
    site, client = request.site, request.client
    method, start = choose_method(client.config), client.learner.initial()
    prompts = {name: start[name] for name in method.shared()}
    expected = Expected(prompts, len(site.prepared.dataset.classes), method.neighbours())
    wrong = validate_request(request.request, expected)
    if wrong:
        yield wrong


def pinned(request: SiteRequest) -> Iterable[str]:
    """Settings, classes and images are those that the run began with."""
    hold_to(request.folder / PINNED, request.terms, request.site.images)
    return ()


def in_order(request: SiteRequest, step: SiteStep) -> Iterator[str]:
    """Each request of the protocol comes once, and in its order."""
    why_not = out_of_order(request.request, step, request.client.config, int(request.site.home.limits.restarts))
    if why_not:
        yield why_not


def known_peers(request: SiteRequest, step: SiteStep) -> Iterator[str]:
    """Secure aggregation are among sites whose keys this site knows."""
    if isinstance(request.request, ShareKeys) and request.client.config.privacy.secure_aggregation:
        why_not = request.peers.objection(request.request)
        if why_not:
            yield why_not


def charged(request: SiteRequest, before: ClientState, reply: Reply) -> Reply:
    """Enter a reply with noise on it into the ledger; `Refused` beyond the budget of all runs."""
    session = before.secrets.session
    release = release_of(
        request.terms.run, request.request, request.client.config, session.name.hex() if session else ""
    )
    if release is not None:
        request.site.ledger.charge(*release, request.site.home.limits.epsilon)
    return reply


def vouched(request: SiteRequest, before: ClientState, reply: Reply) -> Reply:
    """Sign the keys that this site has made for a secure aggregation."""
    if isinstance(request.request, SetupKeys) and isinstance(reply, PublicKeys):
        return replace(reply, voucher=request.peers.own.vouch(request.request.session, reply.keys))
    return reply


EVERY_REQUEST: tuple[Callable[[SiteRequest], Iterable[str]], ...] = (compatible, conditions, agreement, valid, pinned)
NEW_REQUEST: tuple[Callable[[SiteRequest, SiteStep], Iterable[str]], ...] = (in_order, known_peers)
NEW_REPLY: tuple[Callable[[SiteRequest, ClientState, Reply], Reply], ...] = (charged, vouched)


def respond(request: SiteRequest) -> tuple[Reply, ClientState]:
    """The reply to a request, and the state of the client after it.

    Raises:
        Refused: a policy objects.
    """
    for policy in EVERY_REQUEST:
        refuse(policy(request))
    states = SiteState(request.folder / "state")
    if request.client.config.earlier and not states.has_begun:
        states.seed(request.site.left_by_earlier(request.client))

    def compute(step: SiteStep, before: ClientState) -> tuple[Reply, ClientState]:
        for policy in NEW_REQUEST:
            refuse(policy(request, step))
        reply, state = request.client.handle(request.request, before)
        for finish in NEW_REPLY:
            reply = finish(request, before, reply)
        return reply, state

    return states.handle(request.request, request.terms.attempt, compute), states.state()


def refuse(reasons: Iterable[str]) -> None:
    """Raise `Refused` with all reasons of a policy, if there are any."""
    text = "; ".join(reasons)
    if text:
        raise Refused(text)
