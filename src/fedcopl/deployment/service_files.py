"""`fedcopl service`: a systemd unit and a Containerfile for a site or a server.

The unit and the container give the program one writable folder, its home, and nothing else of the machine; it stops on
SIGTERM within seconds, keeps its state, and continues at the next start.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import ConfigError

_INTERRUPTED = 130  # exit status of both when stopped: see errors.py
_STOP_SECONDS = 90  # for a reply in progress

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
TimeoutStopSec={stop}
SuccessExitStatus={interrupted}
RestartPreventExitStatus=2 3 4

# One writable folder, and nothing else of this machine.
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
class Service:
    """A site or a server that runs as a service."""

    role: Literal["site", "server"]
    home: Path  # the writable folder: keys, runs, cache
    images: Path | None = None  # of a site
    user: str = "fedcopl"
    arguments: Sequence[str] = ()  # additional settings and options

    def __post_init__(self) -> None:
        if self.role == "site" and self.images is None:
            raise ConfigError("--images: name the images of this site")
        for path in (self.home, self.images or self.home):
            if any(letter.isspace() or letter in "%\"'\\" or not letter.isprintable() for letter in str(path)):
                raise ConfigError(f"{path}: a service needs a path without spaces, quotes and percent signs")

    def command(self, program: Sequence[str], home: Path, images: Path | None) -> list[str]:
        """Return the command of the service; the same at every start."""
        if self.role == "server":
            return [*program, "server", "--folder", str(home / "federation"), "--auto-resume", *self.arguments]
        accepted = ["--accept", str(home / "site" / "settings.toml")]  # without a terminal
        return [*program, "join", "--folder", str(home / "site"), "--images", str(images), *accepted, *self.arguments]

    def unit(self) -> str:
        command = self.command([sys.executable, "-m", "fedcopl"], self.home, self.images)
        return _UNIT.format(
            role=self.role,
            command=shlex.join(word.replace("%", "%%") for word in command),
            home=self.home,
            user=self.user,
            stop=_STOP_SECONDS,
            interrupted=_INTERRUPTED,
            read_only=f"ReadOnlyPaths={self.images}\n" if self.images else "",
            private_devices="yes" if self.role == "server" else "no",  # a site may have a GPU
        )

    def containerfile(self, version: str) -> str:
        container_home = Path("/home/fedcopl")
        arguments = self.command([], container_home, Path("/images") if self.images else None)
        return _CONTAINERFILE.format(
            role=self.role,
            home=self.home,
            mounts=f" -v {self.images}:/images:ro,Z" if self.images else "",
            ports=" --network=host"
            if self.role == "server"
            else "",  # a forwarded port would hide the client addresses
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            version=version,
            arguments=", ".join(f'"{word}"' for word in arguments),
        )
