"""Findings, and the checks of the machine, the installed packages, expiring keys, and the connection to a server."""

import os
import platform
import re
import shutil
import socket
import ssl
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from ..clip.device import choose_arithmetic, threads_for
from ..config import Model
from ..data.cache import default_folder
from ..data.parallel import free_memory, workers
from ..deployment.addresses import connect, proxy_to, strip_credentials
from ..errors import ConfigError, FedCoPLError


class Finding(NamedTuple):
    """Result of one check."""

    level: Literal["ok", "note", "problem"]  # a problem stops a run
    subject: str
    detail: str
    advice: str = ""  # what to do about it


GIGABYTE = 10**9
_LOW_MEMORY, _LOW_DISK = 2 * GIGABYTE, GIGABYTE
_TIMEOUT = 5.0  # seconds for the reply of a server
_EXTRAS = {  # the module that an extra brings, and what it is for
    "hub": ("huggingface_hub", "fetching CLIP models by name"),
    "parquet": ("pyarrow", "tables in Parquet"),
    "onnx": ("onnxruntime", "fedcopl export --onnx"),
    "flower": ("flwr", "federations across machines"),
    "web": ("starlette", "pages in a browser"),
}


def check_machine(results: Path) -> Iterator[Finding]:
    """Check Python, packages, memory, the disk of the results, and the cache folder."""
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    required = [line for line in requires("fedcopl") or [] if "extra ==" not in line]
    missing = [name for line in required if not _is_installed(name := re.split(r"[<>=!~;\[ (]", line)[0])]
    if missing:
        yield Finding("problem", "packages", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield Finding(
            "ok", "packages", f"fedcopl {version('fedcopl')}, torch {version('torch')}, numpy {version('numpy')}"
        )
    for extra, (module, purpose) in _EXTRAS.items():
        if find_spec(module) is None:
            yield Finding(
                "note", f"extra {extra}", f"not installed; needed for: {purpose}", f"pip install 'fedcopl[{extra}]'"
            )
        else:
            yield Finding("ok", f"extra {extra}", purpose)
    free = free_memory()
    if free is None:
        yield Finding("ok", "memory", "this system does not report free memory")
    elif free < _LOW_MEMORY:
        advice = "close other programs, or lower model.memory and train.batch"
        yield Finding("note", "memory", f"{free / GIGABYTE:.1f} GB free", advice)
    else:
        yield Finding("ok", "memory", f"{free / GIGABYTE:.1f} GB free")
    yield _check_disk("disk", results, "free some space, or work in another folder")
    advice = "free some space (fedcopl cache clear), or name another folder in FEDCOPL_CACHE"
    yield _check_disk("cache folder", default_folder(), advice)


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _check_disk(subject: str, path: Path, advice: str) -> Finding:
    """Check that a folder can be written; one that does not exist yet by its nearest parent."""
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK):
        return Finding("problem", subject, f"{path} cannot be written", "choose a folder that you may write to")
    detail = f"{path}: {free / GIGABYTE:.1f} GB free"
    return Finding("problem", subject, detail, advice) if free < _LOW_DISK else Finding("ok", subject, detail)


def check_device(model: Model) -> Iterator[Finding]:
    """Check device, precision and threads of the settings."""
    try:
        chosen = choose_arithmetic(model.device, model.precision)
    except FedCoPLError as error:
        yield Finding("problem", "device", str(error), "change the setting named above")
        return
    yield Finding("ok", "device", f"{chosen.device.type}, {chosen.precision}")
    if model.threads > workers():
        detail = f"model.threads is {model.threads}, but there are {workers()} cores"
        yield Finding("note", "threads", detail, "lower model.threads")
    else:
        yield Finding("ok", "threads", f"{threads_for(model) or 'as torch chooses'} of {workers()} cores")


def check_expiry(folder: Path) -> Iterator[Finding]:
    """Report when the keys and certificates in the folder of a site or server expire, and how to renew them."""
    from ..deployment.packages import expiries

    try:
        endings = list(expiries(folder))
    except FedCoPLError as error:
        yield Finding("problem", "keys and certificates", str(error), "fix or replace the file named above")
        return
    for ending in endings:
        if ending.days_left < 0:
            yield Finding("problem", ending.what, str(ending), ending.renewal)
        elif ending.is_near:
            yield Finding("note", ending.what, str(ending), ending.renewal)
        else:
            yield Finding("ok", ending.what, str(ending))


def check_server(address: str, certificate: Path | None) -> Iterator[Finding]:
    """Connect to a server, `host:port` or `[::1]:port`, and check its certificate."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--server: should be HOST:PORT, not {address!r}")
    host = host.removeprefix("[").removesuffix("]")
    try:
        connection = connect(host, int(port), _TIMEOUT)
    except OSError as error:
        advice = "check the address, that the server runs, and that no firewall is in between"
        yield Finding("problem", "server", f"{address} cannot be reached: {error.strerror or error}", advice)
        return
    with connection:
        proxy = proxy_to(host)
        yield Finding(
            "ok", "server", f"{address} answers" + (f", through the proxy {strip_credentials(proxy)}" if proxy else "")
        )
        yield _check_tls(connection, host, certificate)


def _check_tls(connection: socket.socket, host: str, certificate: Path | None) -> Finding:
    try:
        context = ssl.create_default_context(cafile=certificate)
        with context.wrap_socket(connection, server_hostname=host) as secured:
            return Finding("ok", "encryption", f"{secured.version()}, and the certificate is the one expected")
    except ssl.SSLCertVerificationError as error:
        advice = "ask the operator of the server for its certificate ca.pem, and name it with --ca"
        return Finding("problem", "encryption", f"the certificate is not trusted: {error.verify_message}", advice)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        advice = "start the server with TLS, or check that the port is its own"
        return Finding("problem", "encryption", f"no TLS: {reason}", advice)
