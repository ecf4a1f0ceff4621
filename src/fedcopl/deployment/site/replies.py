"""What a site sends back to any message: an answer, its name, or a refusal that tells nothing of its images.

`make_client_app` is for those who run Flower: each question has a route of its own, and all lead to the same site.
Flower starts a new process for every message and forgets what an app keeps in `context.state` when its SuperNode is
restarted; so nothing is kept there. `fedcopl join` answers by `reply_to` too, but without a new process each time.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ...errors import CannotAnswer, DataError, FedCoPLError, ModelError, RunFolderError
from ...messages import REPLY_TO, Ask, Reply, digest
from ..audit_log import OUT, AuditLog
from ..wire.crossings import crossing, received
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
OPEN = (Refused, Unreadable, CannotAnswer)  # they speak of questions, never of images
EXPECTED = (FedCoPLError, *OPEN)
KINDS: dict[type[Exception], str] = {  # what an operator may be told of an error, and no more
    RunFolderError: "its folder is full, in use or damaged",
    DataError: "its images cannot be read",
    ModelError: "its model cannot be used",
}
log = logging.getLogger("fedcopl.site")


class Answerer(Protocol):
    """Somebody who answers the server: a site, or one that is simulated."""

    @property
    def name(self) -> str: ...

    @property
    def folder_name(self) -> str:
        """Tells its folder from any other, and says nothing about it."""
        ...

    def answer(self, ask: Ask, terms: Terms) -> Reply: ...


def make_client_app(
    answerer: Callable[[Context], Answerer], log_of: Callable[[Context], AuditLog | None] = lambda context: None
) -> ClientApp:
    """An app that takes every question to whom the context names, and writes it down where that one has a log."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        log_book = log_of(context)
        if log_book is None:
            return reply_to(message, lambda: answerer(context))
        return audited_reply(message, lambda: answerer(context), log_book, "its SuperLink")

    for path in (ASK_NAME, *map(route, REPLY_TO)):
        app.query(path.removeprefix("query."))(handle)
    return app


def reply_to(message: Message, answerer: Callable[[], Answerer]) -> Message:
    """The answer to any message: an answer, a name, or a refusal. What went wrong here is said here, not there."""
    try:
        return Message(_answer(message, answerer()), reply_to=message)
    except Exception as error:
        whole_reason = "; ".join([str(error), *getattr(error, "__notes__", ())])
        step = message.metadata.message_type.removeprefix("query.")
        log.error("%s: %s", step, whole_reason, exc_info=not isinstance(error, EXPECTED))
        return Message(refusal_records(harmless_reason(error)), reply_to=message)


def audited_reply(message: Message, site: Callable[[], Answerer], log_book: AuditLog, server: str) -> Message:
    """The answer to any message, both written down: the question before it is looked at, the answer before it goes.

    What cannot be written down is not answered: all that leaves then is that it is so.
    """
    try:
        log_book.write(received(message, server))
        reply = reply_to(message, site)
        log_book.write(crossing(reply, OUT, server, decision_of(reply), message))
        return reply
    except RunFolderError as error:
        log.error("%s", error)
        return Message(refusal_records(harmless_reason(error)), reply_to=message)


def decision_of(reply: Message) -> str:
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


def _answer(message: Message, answerer: Answerer) -> RecordDict:
    if message.metadata.message_type == ASK_NAME:
        return name_records(answerer.name)
    ask, terms = read_question(message.content, MOST)
    return answer_records(answerer.answer(ask, terms), digest(ask), answerer.folder_name)
