"""The processes of a deployment: the lock of their folder, stopping them, the log of a child process, and services.

A server and a site each lock their own folder. A child process never outlives its parent, however that ends. In the
systemd unit and the container of `fedcopl service` the program has one writable folder, its home, and nothing else of
the machine; it stops on SIGTERM within seconds, keeps its state, and continues at the next start.
"""

import json
import logging
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Literal

from ..errors import ConfigError, FederationError
from ..files import make_private_folder, write_text
from ..run.folder import RunFolder

_LOG_BYTES, _OLD_LOGS = 5_000_000, 3  # size of a log file, and number of older files
WORKING = "working.json"  # the process of a folder and its state, for `fedcopl status`
_STOP = "stop"  # a file of this name stops the process of this folder
SECRET = "exec.secret"  # shared by a server and its SuperLink
_PARENT_CHECK = 0.2  # seconds between two checks that the parent is alive
GRACE = 5.0  # seconds for a child to end after SIGTERM

# 90 s to stop are for a reply in progress; 130 is the exit status of a stopped process (errors.py).
_UNIT = """\
[Unit]
Description=fedcopl {role}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
WorkingDirectory={home}
User={user}
Environment=FEDCOPL_CACHE={home}/cache HOME={home} PYTHONUNBUFFERED=1
Restart=on-failure
RestartSec=30
KillMode=mixed
TimeoutStopSec=90
SuccessExitStatus=130
RestartPreventExitStatus=2 3 4

# One writable folder.
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={home}
{read_only}ProtectHome=read-only
PrivateTmp=yes
PrivateDevices={private_devices}
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
SystemCallArchitectures=native
CapabilityBoundingSet=

[Install]
WantedBy=multi-user.target
"""

_CONTAINERFILE = """\
# Build:  podman build -t fedcopl-{role} .
# Run:    podman run --read-only --tmpfs /tmp --cap-drop=all --security-opt no-new-privileges \\
#             -v {home}:/home/fedcopl:Z{mounts}{ports} fedcopl-{role}
# INDEX: index with torch without CUDA, for a much smaller image; empty for the default index.
FROM python:{python}-slim AS build
ARG INDEX=""
RUN python -m venv /opt/fedcopl \\
 && /opt/fedcopl/bin/pip install --no-cache-dir --no-compile ${{INDEX:+--extra-index-url $INDEX}} \\
        "fedcopl[flower,privacy]=={version}"

FROM python:{python}-slim
COPY --from=build /opt/fedcopl /opt/fedcopl
RUN useradd --uid 10001 --home-dir /home/fedcopl --no-create-home --shell /usr/sbin/nologin fedcopl
USER 10001
WORKDIR /home/fedcopl
ENV HOME=/home/fedcopl FEDCOPL_CACHE=/home/fedcopl/cache PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
VOLUME /home/fedcopl
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/fedcopl/bin/fedcopl"]
CMD [{arguments}]
"""


@dataclass(frozen=True)
class FolderProcess:
    """The process that holds the lock of a folder, or the last one that held it."""

    folder: Path
    role: str  # server or site
    running: bool
    details: Mapping[str, str]  # of a server: address, local, out, ca; of a site: name, server, conditions

    @property
    def results(self) -> Path:
        """Folder of a server's run."""
        if "out" not in self.details:
            raise FederationError(f"{self.folder}: belongs to a {self.role}; name the folder of a server with --folder")
        return Path(self.details["out"])


@contextmanager
def locked_folder(folder: Path, role: str, details: Mapping[str, str]) -> Iterator[None]:
    """Lock a folder for this process within the block, and write its role and details for `fedcopl status`."""
    os.umask(0o077)  # also for Flower's processes and their files
    make_private_folder(folder)
    with RunFolder(folder):
        (folder / _STOP).unlink(missing_ok=True)
        _write_process_state(folder, role, details, running=True)
        try:
            yield
        finally:
            _write_process_state(folder, role, details, running=False)
            (folder / _STOP).unlink(missing_ok=True)


def _write_process_state(folder: Path, role: str, details: Mapping[str, str], *, running: bool) -> None:
    now = {"role": role, **details, "pid": os.getpid(), "running": running, "since": time.time()}
    write_text(folder / WORKING, json.dumps(now, indent=1) + "\n")


def process_of(folder: Path) -> FolderProcess:
    """Read which process holds the lock of this folder, or held it last; it is running only if it still exists."""
    try:
        stored = json.loads((folder / WORKING).read_text(encoding="utf-8"))
        details = {key: value for key, value in stored.items() if isinstance(value, str) and key != "role"}
        running = bool(stored["running"]) and _process_exists(int(stored["pid"]))
        return FolderProcess(folder, str(stored["role"]), running, details)
    except FileNotFoundError as error:
        is_prepared = any((folder / name).exists() for name in ("site.key", "server.key", "package.json"))
        reason = "has not run yet" if is_prepared else "is not the folder of a server or a site; name one with --folder"
        raise FederationError(f"{folder}: {reason}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FederationError(f"{folder / WORKING}: cannot be read: {error}") from error


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:  # without permission, the process exists
        return not isinstance(error, ProcessLookupError)
    return True


def should_stop(folder: Path) -> bool:
    """Return whether the process of this folder has been requested to stop."""
    return (folder / _STOP).exists()


def request_stop(folder: Path, timeout: float) -> bool:
    """Request the process of this folder to stop; return whether it stopped within `timeout` seconds."""
    write_text(folder / _STOP, "")
    end = time.monotonic() + timeout
    while process_of(folder).running:
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    (folder / _STOP).unlink(missing_ok=True)
    return True


@contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C within the block: child processes end first, and files are complete."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_parent(parent: int) -> None:
    """End this process as soon as its parent process has ended, even if that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _QuietHandler(RotatingFileHandler):
    """Ignores errors: a full disk must not stop the child."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


def write_log(source: IO[bytes], file: Path, max_bytes: int = _LOG_BYTES, backups: int = _OLD_LOGS) -> threading.Thread:
    """Copy the lines of a stream to a rotating log file, in a thread."""
    handler = _QuietHandler(file, maxBytes=max_bytes, backupCount=backups, encoding="utf-8", delay=True)

    def follow() -> None:
        with source, closing(handler):
            for line in source:
                handler.emit(logging.makeLogRecord({"msg": line.decode(errors="replace").rstrip("\n")}))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True)
class Service:
    """A site or a server that runs as a service."""

    role: Literal["site", "server"]
    home: Path  # writable folder of keys, runs and cache
    images: Path | None = None  # of a site
    user: str = "fedcopl"
    arguments: Sequence[str] = ()  # additional settings and options

    def __post_init__(self) -> None:
        if self.role == "site" and self.images is None:
            raise ConfigError("--images: is missing; give the folder of this site's images")
        for path in (self.home, self.images or self.home):
            if any(letter.isspace() or letter in "%\"'\\" or not letter.isprintable() for letter in str(path)):
                raise ConfigError(f"{path}: a service needs a path without spaces, quotes and percent signs")

    def command(self, program: Sequence[str], home: Path, images: Path | None) -> list[str]:
        """Return the command line of the service."""
        if self.role == "server":
            return [*program, "server", "--folder", str(home / "federation"), "--auto-resume", *self.arguments]
        accepted = ["--accept", str(home / "site" / "settings.toml")]  # without a terminal
        return [*program, "join", "--folder", str(home / "site"), "--images", str(images), *accepted, *self.arguments]

    def systemd_unit(self) -> str:
        """Return the content of the systemd unit file."""
        command = self.command([sys.executable, "-m", "fedcopl"], self.home, self.images)
        return _UNIT.format(
            role=self.role,
            command=shlex.join(word.replace("%", "%%") for word in command),
            home=self.home,
            user=self.user,
            read_only=f"ReadOnlyPaths={self.images}\n" if self.images else "",
            private_devices="yes" if self.role == "server" else "no",  # a site may have a GPU
        )

    def containerfile(self, version: str) -> str:
        """Return a Containerfile that installs this version of fedcopl."""
        container_home = Path("/home/fedcopl")
        arguments = self.command([], container_home, Path("/images") if self.images else None)
        return _CONTAINERFILE.format(
            role=self.role,
            home=self.home,
            mounts=f" -v {self.images}:/images:ro,Z" if self.images else "",
            # A forwarded port would hide the addresses of the clients.
            ports=" --network=host" if self.role == "server" else "",
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            version=version,
            arguments=", ".join(f'"{word}"' for word in arguments),
        )
