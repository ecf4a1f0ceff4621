"""Download of data sets from their publishers, with checksums and resume."""

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError

_BytesProgress = Callable[[int, int | None], None]
"""Called with the downloaded bytes and the total, None if the server does not report it."""

_PIECE = 1 << 20
_PARTIAL_CONTENT, _RANGE_NOT_SATISFIABLE = 206, 416


@dataclass(frozen=True)
class _Download:
    """Address and checksum of an archive."""

    url: str
    md5: str  # by the publisher or torchvision
    makes: str  # the folder in the archive


DOWNLOADS: dict[str, _Download] = {
    "cifar10": _Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
    ),
    "cifar100": _Download(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
    ),
    "dtd": _Download(
        "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
        "fff73e5086ae6bdbea199a49dfb8a4c1",
        "dtd",
    ),
    "cub200": _Download(
        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        "97eceeb196236b17998738112f37df78",
        "CUB_200_2011",
    ),
}
_BY_HAND: Mapping[str, str] = {
    "resisc45": "its authors offer it on OneDrive only: https://1drv.ms/u/s!AmgKYzARBl5ca3HNaHIlzp_IXjs",
    "ucf101": "CoOp offers the middle frames on Google Drive only; see DATASETS.md in github.com/KaiyangZhou/CoOp",
}


def get(name: str, folder: Path, progress: _BytesProgress = lambda done, total: None) -> Path:
    """Download and unpack a data set into a folder; returns the folder of the data set."""
    if name not in DOWNLOADS:
        reason = _BY_HAND.get(name, f"known: {', '.join(DOWNLOADS)}")
        raise DataError(f"{name}: cannot be downloaded by this program; {reason}")
    download = DOWNLOADS[name]
    made, archive = folder / download.makes, folder / download.url.rsplit("/", 1)[-1]
    if made.exists():
        return made
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not archive.exists():
            _fetch_file(download, archive, progress)
        with archive.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != download.md5:
            archive.unlink()
            raise DataError(f"{download.url}: the download has the checksum {md5}, not {download.md5}; it was removed")
        _unpack(archive, folder, download.makes)
    except urllib.error.URLError as error:
        raise DataError(
            f"{download.url}: cannot be fetched: {error.reason}; run the same command again to resume"
        ) from error
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise DataError(
            f"{download.url}: the connection broke: {error!r}; run the same command again to resume"
        ) from error
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from error
    archive.unlink()
    return made


def _fetch_file(download: _Download, archive: Path, progress: _BytesProgress) -> None:
    """Download into a temporary file, resuming an earlier attempt."""
    part = archive.with_name(f"{archive.name}.part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE:
            raise
        part.rename(archive)  # complete already; the checksum is checked next
        return
    with response, part.open("ab") as file:
        if have and response.status != _PARTIAL_CONTENT:  # the server ignores the range and sends everything
            file.truncate(0)
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        while piece := response.read(_PIECE):
            file.write(piece)
            have += len(piece)
            progress(have, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and have < total:
        raise ConnectionError(f"{have:,} of {total:,} bytes came")
    part.rename(archive)


def _unpack(archive: Path, folder: Path, makes: str) -> None:
    """Unpack into a temporary folder, then rename it. The filter keeps every file inside."""
    if not hasattr(tarfile, "data_filter"):
        raise DataError(f"{archive}: unpacking safely needs Python 3.11.4 or newer; unpack it by hand: tar xf")
    temporary = folder / f".{makes}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(temporary, filter="data")
        (temporary / makes).rename(folder / makes)
    except (tarfile.TarError, EOFError, FileNotFoundError) as error:
        raise DataError(f"{archive}: cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
