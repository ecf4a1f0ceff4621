"""Checks of the machine, the installed packages, and the connection to a server."""

import os
import platform
import shutil
import socket
import ssl
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from ..clip.device import choose_arithmetic, threads_for
from ..config import Model
from ..data.cache import default_folder
from ..data.parallel import free_memory, workers
from ..deployment.wire.addresses import connect, proxy_to, strip_credentials
from ..errors import ConfigError, FedCoPLError
from .findings import Finding, note, ok, problem

GIGABYTE = 10**9
LITTLE_MEMORY, LITTLE_DISK = 2 * GIGABYTE, GIGABYTE
EXTRAS = {  # the module that an extra brings, and what it is for
    "hub": ("huggingface_hub", "fetching CLIP models by name"),
    "parquet": ("pyarrow", "tables in Parquet"),
    "onnx": ("onnxruntime", "fedcopl export --onnx"),
    "flower": ("flwr", "federations across machines"),
    "web": ("starlette", "pages in a browser"),
}


def check_python() -> Iterator[Finding]:
    yield ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def check_packages() -> Iterator[Finding]:
    """Check that all required packages are installed."""
    needed = [line for line in requires("fedcopl") or [] if "extra ==" not in line]
    missing = [name for name in map(_package, needed) if _version(name) is None]
    if missing:
        yield problem("packages", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield ok("packages", f"fedcopl {version('fedcopl')}, torch {version('torch')}, numpy {version('numpy')}")


def _package(requirement: str) -> str:
    return next((requirement[:end] for end, sign in enumerate(requirement) if sign in "<>=!~;[ ("), requirement)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_extras() -> Iterator[Finding]:
    for extra, (module, purpose) in EXTRAS.items():
        if find_spec(module) is None:
            yield note(f"extra {extra}", f"not installed; needed for: {purpose}", f"pip install 'fedcopl[{extra}]'")
        else:
            yield ok(f"extra {extra}", purpose)


def check_device(model: Model) -> Iterator[Finding]:
    try:
        chosen = choose_arithmetic(model.device, model.precision)
    except FedCoPLError as error:
        yield problem("device", str(error), "change the setting named above")
        return
    yield ok("device", f"{chosen.device.type}, {chosen.precision}")
    if model.threads > workers():
        yield note(
            "threads", f"model.threads is {model.threads}, but there are {workers()} cores", "lower model.threads"
        )
    else:
        yield ok("threads", f"{threads_for(model) or 'as torch chooses'} of {workers()} cores")


def check_memory() -> Iterator[Finding]:
    free = free_memory()
    if free is None:
        yield ok("memory", "this system does not report free memory")
    elif free < LITTLE_MEMORY:
        yield note("memory", f"{_size(free)} free", "close other programs, or lower model.memory and train.batch")
    else:
        yield ok("memory", f"{_size(free)} free")


def check_disk(path: Path) -> Iterator[Finding]:
    """Check the folder of results and the cache folder."""
    yield from _disk("disk", path, "free some space, or work in another folder")
    do = "free some space (fedcopl cache clear), or name another folder in FEDCOPL_CACHE"
    yield from _disk("cache folder", default_folder(), do)


def _disk(what: str, path: Path, do: str) -> Iterator[Finding]:
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        yield problem(what, f"{path} cannot be written", "choose a folder that you may write to")
    elif free < LITTLE_DISK:
        yield problem(what, f"{path}: {_size(free)} free", do)
    else:
        yield ok(what, f"{path}: {_size(free)} free")


def _size(count: int) -> str:
    return f"{count / GIGABYTE:.1f} GB"


TIMEOUT = 5.0  # seconds


def check_server(address: str, certificate: Path | None) -> Iterator[Finding]:
    host, port = split_address(address)
    try:
        connection = connect(host, port, TIMEOUT)
    except OSError as error:
        do = "check the address, that the server runs, and that no firewall is in between"
        yield problem("server", f"{address} cannot be reached: {error.strerror or error}", do)
        return
    with connection:
        proxy = proxy_to(host)
        yield ok("server", f"{address} answers" + (f", through the proxy {strip_credentials(proxy)}" if proxy else ""))
        yield _handshake(connection, host, certificate)


def _handshake(connection: socket.socket, host: str, certificate: Path | None) -> Finding:
    try:
        context = ssl.create_default_context(cafile=certificate)
        with context.wrap_socket(connection, server_hostname=host) as secured:
            return ok("encryption", f"{secured.version()}, and the certificate is the one expected")
    except ssl.SSLCertVerificationError as error:
        do = "ask the operator of the server for its certificate ca.pem, and name it with --ca"
        return problem("encryption", f"the certificate is not trusted: {error.verify_message}", do)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        return problem(
            "encryption", f"no TLS: {reason}", "start the server with TLS, or check that the port is its own"
        )


def split_address(address: str) -> tuple[str, int]:
    """Parse `host:port` or `[::1]:port`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--server: should be HOST:PORT, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
