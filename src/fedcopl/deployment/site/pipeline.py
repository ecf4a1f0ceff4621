"""One request at a site, from the server's message to the reply: the policies that check it, and their order.

From top to bottom: `reply_to` writes the message to the audit log, reads it, and sets the time limit of a reply; the
site passes it to `respond`, which applies the policies listed at the end of this file. A policy returns the reason for
a refusal; the first reason ends the request. A reply is written to disk before it is sent. A repeated request gets the
reply on disk; only the policies for every request apply to it. Last, `reply_to` writes the reply, or the refusal, to
the audit log.

`fedcopl join` calls `reply_to` in its own process. `make_client_app` is for plain Flower, which starts a new process
for every message and loses `context.state` when a SuperNode restarts: all state is on disk.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ...errors import CannotReply, DataError, FedCoPLError, ModelError, RunFolderError
from ...federation.client import Client
from ...federation.client_state import ClientState
from ...federation.validation import Expected, validate_request
from ...messages import REPLY_TO, Adapt, PublicKeys, Reply, Request, SetupKeys, ShareKeys, Unmask, digest
from ...methods import choose_method
from ...run.folder import file_name
from ..audit_log import IN, OUT, AuditLog
from ..keys import site_key
from ..message_format import (
    NAME_QUERY,
    Unreadable,
    audit_message,
    name_records,
    read_request,
    refusal_of,
    refusal_records,
    reply_records,
    route,
)
from ..terms import PINNED, Refused, Terms, check_pinned, differences
from .order import out_of_order
from .peers import Identity, Peers
from .policies import sends_features
from .site_state import SiteProgress, SiteState, release_of

if TYPE_CHECKING:
    from .running_site import RunningSite

_GIGABYTE = 10**9
_MAX_REQUEST = 10**8  # bytes: the prompts and prototypes of large models are a few million
_PUBLIC_ERRORS = (Refused, Unreadable, CannotReply)  # their texts describe requests, never images
_ERROR_KINDS: dict[type[Exception], str] = {  # the texts that the server gets for other errors
    RunFolderError: "its folder is full, in use or damaged",
    DataError: "its images cannot be read",
    ModelError: "its model cannot be used",
}
_log = logging.getLogger("fedcopl.site")


class RequestHandler(Protocol):
    """A site, real or simulated, that computes replies."""

    @property
    def name(self) -> str: ...

    @property
    def folder_name(self) -> str:
        """Random id of the site's folder."""
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
    time_limit: AbstractContextManager[None] | None = None,
) -> Message:
    """Return the reply to a message: the result of its request, the site's name if it queries that, or a refusal.

    A message is in the audit log before it is read, and a reply before it is sent; if the log cannot be written, the
    message is refused. The details of an error stay at the site.
    """
    try:
        if audit:
            audit.write(audit_message(message, IN, server, "received"))
        records = _reply_records(message, load_site, time_limit or nullcontext())
        reply = Message(records, reply_to=message)
        if audit:
            audit.write(audit_message(reply, OUT, server, refusal_of(records) or "replied", message))
        return reply
    except RunFolderError as error:
        _log.error("%s", error)
        return Message(refusal_records(_public_reason(error)), reply_to=message)


def _reply_records(
    message: Message, load_site: Callable[[], RequestHandler], time_limit: AbstractContextManager[None]
) -> RecordDict:
    """Return the records of the reply, of the name, or of a refusal after any error."""
    try:
        site = load_site()
        if message.metadata.message_type == NAME_QUERY:
            return name_records(site.name)
        request, terms = read_request(message.content, _MAX_REQUEST)
        with time_limit:
            reply = site.handle(request, terms)
        return reply_records(reply, digest(request), site.folder_name)
    except Exception as error:
        reason = "; ".join([str(error), *getattr(error, "__notes__", ())])
        kind = message.metadata.message_type.removeprefix("query.")
        _log.error("%s: %s", kind, reason, exc_info=not isinstance(error, (FedCoPLError, *_PUBLIC_ERRORS)))
        return refusal_records(_public_reason(error))


def _public_reason(error: Exception) -> str:
    """Return the text of an error for the server: the full text could name a file, or count images."""
    if isinstance(error, _PUBLIC_ERRORS):
        return str(error)
    kind = _ERROR_KINDS.get(type(error), f"it failed with {type(error).__name__}")
    return f"{kind}; see the site's own log"


@dataclass(frozen=True)
class SiteRequest:
    """A request of the server, and the site that has to reply."""

    site: "RunningSite"
    request: Request
    terms: Terms

    @property
    def folder(self) -> Path:
        """Folder of the run at this site."""
        return self.site.options.folder / "runs" / file_name(self.terms.run)

    @property
    def client(self) -> Client:
        """The client that computes the reply; built at the first request of a run, after the site's conditions."""
        return self.site.client(self.terms)

    @property
    def peers(self) -> Peers:
        options, notify = self.site.options, self.site.notify
        own, requires_sites = Identity(site_key(options.folder, options.name)[0]), options.consent.min_sites > 0
        return Peers(options.folder, own, options.peers, requires_sites, notify)


def respond(incoming: SiteRequest) -> Reply:
    """Return the reply of a real site to a request.

    Raises:
        Refused: a policy objects.
    """
    for policy in _EVERY_REQUEST:
        _refuse(policy(incoming))
    states = SiteState(incoming.folder / "state")
    if incoming.client.config.previous_run and not states.has_begun:
        states.seed(incoming.site.state_from_previous_run(incoming.client))

    def compute(progress: SiteProgress, state_before: ClientState) -> tuple[Reply, ClientState]:
        for policy in _NEW_REQUEST:
            _refuse(policy(incoming, progress))
        reply, state = incoming.client.handle(incoming.request, state_before)
        for policy_of_reply in _NEW_REPLY:
            reply = policy_of_reply(incoming, state_before, reply)
        return reply, state

    reply = states.handle(incoming.request, incoming.terms.attempt, compute)
    incoming.site.write_results(incoming.folder, incoming.client.config, incoming.request, reply, states.state())
    return reply


def _refuse(reason: str | None) -> None:
    """Raise `Refused` if a policy gives a reason."""
    if reason:
        raise Refused(reason)


def compatible(incoming: SiteRequest) -> str | None:
    """Refuse unless the server and the site have the same release, classes and model."""
    return "; ".join(differences(incoming.terms, incoming.site.classes, incoming.site.model))


def conditions(incoming: SiteRequest) -> str | None:
    """Refuse unless the run meets the site's consent and limits."""
    options, config = incoming.site.options, incoming.terms.config()
    return "; ".join([*options.consent.objections(incoming.request, config), *options.limits.objections(config)])


def approved(incoming: SiteRequest) -> str | None:
    """Refuse a new run beyond the limits of disk space and runs per day, or without approval."""
    site, run = incoming.site, incoming.terms.run
    if (incoming.folder / PINNED).exists():
        return None
    limit, runs = site.options.limits.disk, site.options.folder / "runs"
    if sum(file.stat().st_size for file in runs.rglob("*") if file.is_file()) / _GIGABYTE > limit:
        return f"no disk space for another run: this site's limit is {limit:g} GB"
    site.ledger.check_recent_runs(run, site.options.limits.runs)
    reason = site.approval(run, incoming.terms.config())
    if not reason:
        site.ledger.begin(run)
    return reason


def valid(incoming: SiteRequest) -> str | None:
    """Refuse unless prompts and sums in the request have the shapes of this run, and are finite."""
    client = incoming.client
    method, start = choose_method(client.config), client.learner.initial()
    prompts = {name: start[name] for name in method.shared()}
    classes = len(incoming.site.prepared.dataset.classes)
    return validate_request(incoming.request, Expected(prompts, classes, method.neighbours()))


def pinned(incoming: SiteRequest) -> str | None:
    """Refuse if settings, classes or images have changed since the first request of the run."""
    check_pinned(incoming.folder / PINNED, incoming.terms, incoming.site.images)
    return None


def in_order(incoming: SiteRequest, progress: SiteProgress) -> str | None:
    """Refuse a request that is out of the protocol's order, or comes more often than the protocol allows."""
    return out_of_order(incoming.request, progress, incoming.client.config, int(incoming.site.options.limits.restarts))


def known_peers(incoming: SiteRequest, progress: SiteProgress) -> str | None:
    """Refuse secure aggregation with untrusted keys, and class feature sums over other sites than in earlier runs."""
    message, config = incoming.request, incoming.client.config
    if isinstance(message, ShareKeys) and config.privacy.secure_aggregation:
        return incoming.peers.objection(message)
    if isinstance(message, Adapt) and message.peers and sends_features(config):
        return incoming.peers.objection_to_members(message.peers)
    return None


def charged(incoming: SiteRequest, state_before: ClientState, reply: Reply) -> Reply:
    """Enter a reply with noise into the ledger; `Refused` beyond the budget of all runs."""
    session = state_before.secrets.session
    session_name = session.name.hex() if session else ""
    release = release_of(incoming.terms.run, incoming.request, incoming.client.config, session_name)
    if release is not None:
        incoming.site.ledger.charge(*release, incoming.site.options.limits.epsilon)
    return reply


def vouched(incoming: SiteRequest, state_before: ClientState, reply: Reply) -> Reply:
    """Add a voucher, this site's signature, to the keys that it has made for a secure aggregation."""
    if isinstance(incoming.request, SetupKeys) and isinstance(reply, PublicKeys):
        return replace(reply, voucher=incoming.peers.own.vouch(incoming.request.session, reply.keys))
    return reply


def members_pinned(incoming: SiteRequest, state_before: ClientState, reply: Reply) -> Reply:
    """Store the members of the first class feature sums, before their masks are removed."""
    session = state_before.secrets.session if isinstance(incoming.request, Unmask) else None
    if session and session.kind == Adapt.__name__ and sends_features(incoming.client.config):
        incoming.peers.pin_members(session.peers)
    return reply


_EVERY_REQUEST: tuple[Callable[[SiteRequest], str | None], ...] = (compatible, conditions, approved, valid, pinned)
_NEW_REQUEST: tuple[Callable[[SiteRequest, SiteProgress], str | None], ...] = (in_order, known_peers)
_NEW_REPLY: tuple[Callable[[SiteRequest, ClientState, Reply], Reply], ...] = (charged, vouched, members_pinned)
