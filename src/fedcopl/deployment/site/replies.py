"""What a site sends back to any message: an answer, its name, or a refusal that tells nothing of its images.

`make_client_app` is for those who run Flower: each question has a route of its own, and all lead to the same site.
Flower starts a new process for every message and forgets what an app keeps in `context.state` when its SuperNode is
restarted; so nothing is kept there. `fedcopl join` answers by `reply_to` too, but without a new process each time.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...errors import CannotReply, DataError, FedCoPLError, ModelError, RunFolderError
from ...messages import REPLY_TO, Reply, Request, digest
from ..audit_log import IN, OUT, AuditLog
from ..wire.crossings import crossing
from ..wire.message_format import (
    ASK_NAME,
    REFUSED,
    Unreadable,
    answer_records,
    is_refusal,
    name_records,
    one_line,
    read_question,
    refusal_records,
    route,
)
from ..wire.terms import Refused, Terms

MOST = 10**8  # bytes of a question: the prompts and prototypes of large models are a few million
OPEN = (Refused, Unreadable, CannotReply)  # they speak of questions, never of images
EXPECTED = (FedCoPLError, *OPEN)
KINDS: dict[type[Exception], str] = {  # what an operator may be told of an error, and no more
    RunFolderError: "its folder is full, in use or damaged",
    DataError: "its images cannot be read",
    ModelError: "its model cannot be used",
}
log = logging.getLogger("fedcopl.site")


class RequestHandler(Protocol):
    """Somebody who answers the server: a site, or one that is simulated."""

    @property
    def name(self) -> str: ...

    @property
    def folder_name(self) -> str:
        """Tells its folder from any other, and says nothing about it."""
        ...

    def handle(self, request: Request, terms: Terms) -> Reply: ...


def make_client_app(
    answerer: Callable[[Context], RequestHandler], log_of: Callable[[Context], AuditLog | None] = lambda context: None
) -> ClientApp:
    """An app that takes every request to the site that the context names, and to its audit log if it has one."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        return reply_to(message, lambda: answerer(context), log_of(context), "its SuperLink")

    for path in (ASK_NAME, *map(route, REPLY_TO)):
        app.query(path.removeprefix("query."))(handle)
    return app


def reply_to(
    message: Message,
    answerer: Callable[[], RequestHandler],
    audit: AuditLog | None = None,
    server: str = "",
    limit: AbstractContextManager[None] | None = None,
) -> Message:
    """The reply to any message: an answer, a name, or a refusal. The details of an error stay at the site.

    A message is in the audit log before it is read, and a reply before it is sent: what cannot be logged is refused.
    """
    try:
        if audit:
            audit.write(crossing(message, IN, server, "received"))
        reply = _reply(message, answerer, limit or nullcontext())
        if audit:
            audit.write(crossing(reply, OUT, server, _decision(reply), message))
        return reply
    except RunFolderError as error:
        log.error("%s", error)
        return Message(refusal_records(harmless_reason(error)), reply_to=message)


def _reply(message: Message, answerer: Callable[[], RequestHandler], limit: AbstractContextManager[None]) -> Message:
    try:
        site = answerer()
        if message.metadata.message_type == ASK_NAME:
            return Message(name_records(site.name), reply_to=message)
        request, terms = read_question(message.content, MOST)
        with limit:
            reply = site.handle(request, terms)
        return Message(answer_records(reply, digest(request), site.folder_name), reply_to=message)
    except Exception as error:
        whole_reason = "; ".join([str(error), *getattr(error, "__notes__", ())])
        step = message.metadata.message_type.removeprefix("query.")
        log.error("%s: %s", step, whole_reason, exc_info=not isinstance(error, EXPECTED))
        return Message(refusal_records(harmless_reason(error)), reply_to=message)


def _decision(reply: Message) -> str:
    """In the words of the log: answered, or why not."""
    if not is_refusal(reply.content):
        return "answered"
    return f"refused: {one_line(reply.content.config_records[REFUSED].get('reason'))}"


def harmless_reason(error: Exception) -> str:
    """What the server may know of an error: a file's name or a number in its text could tell of an image."""
    if isinstance(error, OPEN):
        return str(error)
    kind = KINDS.get(type(error), f"it failed with {type(error).__name__}")
    return f"{kind}; the site's own log says more"
