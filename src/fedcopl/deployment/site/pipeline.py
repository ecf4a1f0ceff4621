"""One request at a site, from the server's message to the reply: the policies that check it, and their order.

`reply_to` writes the message to the audit log, reads it, and sets the time limit of a reply; then `respond` applies the
lists of policies below. A policy gives the reasons why the site does not reply; the first one that has any ends the
request. A reply is written to disk before it is sent. The same request again gets the reply on disk, after the policies
for every request and without the others. Last, `reply_to` writes the reply, or the refusal, to the audit log.

`fedcopl join` calls `reply_to` in its own process. `make_client_app` is for plain Flower, which starts a new process
for every message and loses `context.state` when a SuperNode restarts: so nothing is kept there.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...errors import CannotReply, DataError, FedCoPLError, ModelError, RunFolderError
from ...federation.client import Client
from ...federation.client_state import ClientState
from ...federation.validation import Expected, validate_request
from ...messages import REPLY_TO, Adapt, PublicKeys, Reply, Request, SetupKeys, ShareKeys, Unmask, digest
from ...methods import choose_method
from ...run.folder import file_name
from ..audit_log import IN, OUT, AuditLog
from ..site_keys import site_key
from ..wire.message_format import (
    NAME_QUERY,
    REFUSED,
    Unreadable,
    audit_message,
    is_refusal,
    name_records,
    one_line,
    read_request,
    refusal_records,
    reply_records,
    route,
)
from ..wire.terms import PINNED, Refused, Terms, check_pinned, differences
from .ledger import release_of
from .order import out_of_order
from .peers import Identity, Peers
from .policies import sends_features
from .site_state import SiteState, SiteStep

if TYPE_CHECKING:
    from .running_site import RunningSite

GIGABYTE = 10**9
MAX_REQUEST = 10**8  # bytes: the prompts and prototypes of large models are a few million
HARMLESS = (Refused, Unreadable, CannotReply)  # errors whose text is about requests, never about images
ERROR_KINDS: dict[type[Exception], str] = {  # all that the server gets to know of other errors
    RunFolderError: "its folder is full, in use or damaged",
    DataError: "its images cannot be read",
    ModelError: "its model cannot be used",
}
log = logging.getLogger("fedcopl.site")


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
    """A new run fits into the limits of disk space and runs per day, and is approved."""
    site, run = request.site, request.terms.run
    if (request.folder / PINNED).exists():
        return
    limit, runs = site.home.limits.disk, site.home.folder / "runs"
    if sum(file.stat().st_size for file in runs.rglob("*") if file.is_file()) / GIGABYTE > limit:
        yield f"no disk space for another run: this site's limit is {limit:g} GB"
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
    check_pinned(request.folder / PINNED, request.terms, request.site.images)
    return ()


def in_order(request: SiteRequest, step: SiteStep) -> Iterator[str]:
    """Accept each request of the protocol once, in the protocol's order."""
    reason = out_of_order(request.request, step, request.client.config, int(request.site.home.limits.restarts))
    if reason:
        yield reason


def known_peers(request: SiteRequest, step: SiteStep) -> Iterator[str]:
    """Secure aggregation is among sites whose keys this site knows; that of features among the same in all runs."""
    message, reason = request.request, None
    if isinstance(message, ShareKeys) and request.client.config.privacy.secure_aggregation:
        reason = request.peers.objection(message)
    if isinstance(message, Adapt) and message.peers and sends_features(request.client.config):
        reason = request.peers.other_members(message.peers)
    if reason:
        yield reason


def charged(request: SiteRequest, before: ClientState, reply: Reply) -> Reply:
    """Enter a reply with noise into the ledger; `Refused` beyond the budget of all runs."""
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


def members_pinned(request: SiteRequest, before: ClientState, reply: Reply) -> Reply:
    """Pin the members of the first class feature sums, before their masks are removed."""
    session = before.secrets.session
    is_of_priors = isinstance(request.request, Unmask) and session is not None and session.kind == Adapt.__name__
    if session is not None and is_of_priors and sends_features(request.client.config):
        request.peers.pin_members(session.peers)
    return reply


EVERY_REQUEST: tuple[Callable[[SiteRequest], Iterable[str]], ...] = (compatible, conditions, agreement, valid, pinned)
NEW_REQUEST: tuple[Callable[[SiteRequest, SiteStep], Iterable[str]], ...] = (in_order, known_peers)
NEW_REPLY: tuple[Callable[[SiteRequest, ClientState, Reply], Reply], ...] = (charged, vouched, members_pinned)


def respond(request: SiteRequest) -> tuple[Reply, ClientState]:
    """Return the reply to a request, and the state of the client after it.

    Raises:
        Refused: a policy objects.
    """
    for policy in EVERY_REQUEST:
        refuse(policy(request))
    states = SiteState(request.folder / "state")
    if request.client.config.previous_run and not states.has_begun:
        states.seed(request.site.state_from_earlier(request.client))

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


class RequestHandler(Protocol):
    """A site, real or simulated, that computes replies."""

    @property
    def name(self) -> str: ...

    @property
    def folder_name(self) -> str:
        """Random id of the site's folder, different for each folder."""
        ...

    def handle(self, request: Request, terms: Terms) -> Reply: ...


def make_client_app(
    site_of: Callable[[Context], RequestHandler], log_of: Callable[[Context], AuditLog | None] = lambda context: None
) -> ClientApp:
    """Return an app that passes every request to the site of its context, and to its audit log if it has one."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        return reply_to(message, lambda: site_of(context), log_of(context), "its SuperLink")

    for path in (NAME_QUERY, *map(route, REPLY_TO)):
        app.query(path.removeprefix("query."))(handle)
    return app


def reply_to(
    message: Message,
    load_site: Callable[[], RequestHandler],
    audit: AuditLog | None = None,
    server: str = "",
    limit: AbstractContextManager[None] | None = None,
) -> Message:
    """Return the reply to any message: a reply, a name, or a refusal. The details of an error stay at the site.

    A message is in the audit log before it is read, and a reply before it is sent: what cannot be logged is refused.
    """
    try:
        if audit:
            audit.write(audit_message(message, IN, server, "received"))
        reply = _reply(message, load_site, limit or nullcontext())
        if audit:
            records = reply.content.config_records
            refusal = f"refused: {one_line(records[REFUSED].get('reason'))}" if is_refusal(reply.content) else ""
            audit.write(audit_message(reply, OUT, server, refusal or "replied", message))
        return reply
    except RunFolderError as error:
        log.error("%s", error)
        return Message(refusal_records(public_reason(error)), reply_to=message)


def _reply(message: Message, load_site: Callable[[], RequestHandler], limit: AbstractContextManager[None]) -> Message:
    try:
        site = load_site()
        if message.metadata.message_type == NAME_QUERY:
            return Message(name_records(site.name), reply_to=message)
        request, terms = read_request(message.content, MAX_REQUEST)
        with limit:
            reply = site.handle(request, terms)
        return Message(reply_records(reply, digest(request), site.folder_name), reply_to=message)
    except Exception as error:
        reason = "; ".join([str(error), *getattr(error, "__notes__", ())])
        kind = message.metadata.message_type.removeprefix("query.")
        log.error("%s: %s", kind, reason, exc_info=not isinstance(error, (FedCoPLError, *HARMLESS)))
        return Message(refusal_records(public_reason(error)), reply_to=message)


def public_reason(error: Exception) -> str:
    """Return what the server may know of an error: its text could contain a file name or a number of an image."""
    if isinstance(error, HARMLESS):
        return str(error)
    kind = ERROR_KINDS.get(type(error), f"it failed with {type(error).__name__}")
    return f"{kind}; see the site's own log"
