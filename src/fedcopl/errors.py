"""Every error a user can meet.

The command line prints the message in one line and exits with `exit_code`. `docs/errors.md` lists what to do.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_ARGUMENTS = {  # option of the command line -> Python argument
    r"fedcopl run --out (.+?) --resume": r"fit or simulate with folder='\1', resume=True",
    "--resume": "resume=True",
    "--out": "folder",
    "--from": "previous_run=...",
    "--client": "client=...",
    "--backbone": "backbone=...",
    "--workers 1": "workers=1",
    "--onnx": "onnx=True",
    "add --plugin FILE.py": "first call fedcopl.load_plugin('FILE.py')",
}
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape line breaks, control characters and invalid bytes of an untrusted text before it is printed.

    >>> printable("tea \x1b[2J")
    'tea \\x1b[2J'
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def has_control_characters(text: str) -> bool:
    """Return whether a text has control characters other than tab and line feed, which no file of a run may have."""
    return re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text) is not None


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the end of an error message that suggests the most similar known name; empty if none is similar.

    >>> did_you_mean("dirichelt", ["iid", "dirichlet"]), did_you_mean("xyz", ["iid"])
    ('; did you mean dirichlet?', '')
    """
    close_matches = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close_matches[0]}?" if close_matches else ""


class FedCoPLError(Exception):
    """The base class of all errors that are not bugs. The message is one printable line."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(FedCoPLError):
    """A setting is unknown, out of range or of the wrong kind. All errors of a file are reported at once."""

    exit_code = 2


class DataError(FedCoPLError):
    """Images or labels are missing, unreadable or cannot be partitioned with these settings."""

    exit_code = 3


class ModelError(FedCoPLError):
    """A model's files are missing, broken or do not fit together."""

    exit_code = 4


class NoClientReplied(FedCoPLError):
    """No client is connected, or none replied in time."""

    exit_code = 5


class ClientFailed(FedCoPLError):
    """A client raised an error while handling a request; the message has client, round, request and cause."""

    exit_code = 6

    def __init__(self, client: str, step: str, round: int, cause: Exception):
        super().__init__(f"client {client} failed in round {round + 1}, step {step}: {cause}")
        self.client, self.step, self.round = client, step, round


class RunFolderError(FedCoPLError):
    """A folder or file cannot be used: it has another run, is in use, cannot be read or written, or is damaged."""

    exit_code = 7


class FederationError(FedCoPLError):
    """Server and sites cannot connect: a wrong key, certificate or address."""

    exit_code = 10


class CannotReply(ValueError):
    """A client refuses a request. The message describes only the request, and is sent to the server.

    Messages of other errors never leave a site, because they could name an image.
    """


class Interrupted(FedCoPLError):
    """Stopped by the user. Finished rounds are saved."""

    exit_code = 130


@contextmanager
def naming_arguments() -> Iterator[None]:
    """Replace options of the command line in error messages by arguments of the Python API.

    >>> with naming_arguments():
    ...     raise RunFolderError("run: holds a run already; add --resume, or choose another --out")
    Traceback (most recent call last):
    fedcopl.errors.RunFolderError: run: holds a run already; add resume=True, or choose another folder
    """
    try:
        yield
    except FedCoPLError as error:
        text = str(error)
        for option, argument in _ARGUMENTS.items():
            text = re.sub(option, argument, text)
        error.args = (text,)
        raise
