"""Downloads from a local HTTP server."""

import hashlib
import io
import re
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

import pytest

from fedcopl.data.catalog import DOWNLOADS, SOURCES, download_dataset
from fedcopl.errors import DataError


def archive(files: dict[str, bytes | str], mode="w:gz") -> bytes:
    """A tar archive; a text is the target of a link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


WHOLE = archive({"things/a.bin": bytes(range(256)) * 500, "things/b.bin": b"b", "README": b"beside"}, "w")


def things(url, md5):
    return replace(DOWNLOADS["dtd"], url=url, md5=md5, folder="things")


class Server(ThreadingHTTPServer):
    """Serves one file. It drops the connection after `breaks_after` bytes, and supports range requests if `ranges`."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.breaks_after, self.ranges, self.ranges_requested = WHOLE, None, True, []

    def download(self, path="things.tar.gz"):
        md5 = hashlib.md5(self.content).hexdigest()
        return things(f"http://127.0.0.1:{self.server_address[1]}/{path}", md5)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, byte_range = self.server, self.headers.get("Range")
        server.ranges_requested.append(byte_range)
        if self.path != "/things.tar.gz":
            return self.send_error(404)
        start = int(re.fullmatch(r"bytes=(\d+)-", byte_range)[1]) if byte_range and server.ranges else 0
        if start >= len(server.content):
            return self.send_error(416)
        self.send_response(206 if byte_range and server.ranges else 200)
        self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        body = server.content[start:]
        self.wfile.write(body if server.breaks_after is None else body[: server.breaks_after])
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def fetch(download, folder, *progress):
    with mock.patch.dict(DOWNLOADS, {"things": download}):
        return download_dataset("things", folder, *progress)


def check(folder):
    assert (folder / "things" / "a.bin").read_bytes() == bytes(range(256)) * 500
    assert sorted(path.name for path in folder.iterdir()) == ["things"]  # nothing else is left


def test_a_data_set_is_downloaded_and_unpacked(server, tmp_path):
    progress = []
    made = fetch(server.download(), tmp_path / "new", lambda *bytes_read: progress.append(bytes_read))
    assert made == tmp_path / "new" / "things"
    check(tmp_path / "new")
    assert progress[-1] == (len(WHOLE), len(WHOLE))


def test_an_existing_data_set_is_not_downloaded_again(server, tmp_path):
    fetch(server.download(), tmp_path)
    fetch(server.download(), tmp_path)
    assert len(server.ranges_requested) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_is_resumed(server, tmp_path, ranges):
    server.breaks_after, server.ranges = 50_000, ranges
    with pytest.raises(DataError, match=r"cannot be downloaded: .*; run the same command again to resume"):
        fetch(server.download(), tmp_path)
    server.breaks_after = None
    fetch(server.download(), tmp_path)
    check(tmp_path)
    assert server.ranges_requested == [None, "bytes=50000-"]


def test_a_download_interrupted_after_the_last_byte_is_completed(server, tmp_path):
    (tmp_path / "things.tar.gz.part").write_bytes(WHOLE)
    fetch(server.download(), tmp_path)
    check(tmp_path)


def test_an_archive_with_a_wrong_checksum_is_removed(server, tmp_path):
    download = server.download()
    server.content = archive({"things/evil": b"x"})
    with pytest.raises(DataError, match=f"not {download.md5}; it was removed"):
        fetch(download, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "files",
    [
        {"things/a": b"a", "../outside": b"x"},
        {"things/a": "/etc/passwd"},
        {"things/up": "../..", "things/up/outside": b"x"},
        {"others/a": b"a"},
    ],
)
def test_an_archive_with_paths_outside_its_folder_is_refused(server, tmp_path, files):
    server.content = archive(files)
    folder = tmp_path / "in"
    with pytest.raises(DataError, match="cannot be unpacked"):
        fetch(server.download(), folder)
    assert [path.name for path in folder.iterdir()] == ["things.tar.gz"]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_an_absolute_name_in_an_archive_stays_below_the_folder(server, tmp_path):
    server.content = archive({"things/a": b"a", f"{tmp_path}/outside": b"x"})
    fetch(server.download(), tmp_path / "in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_file_that_is_no_archive_is_refused(server, tmp_path):
    server.content = b"not an archive"
    with pytest.raises(DataError, match="cannot be unpacked"):
        fetch(server.download(), tmp_path)


def test_a_missing_file_or_server_is_one_error(server, tmp_path):
    with pytest.raises(DataError, match="cannot be downloaded: Not Found"):
        fetch(server.download("nothing.tar.gz"), tmp_path)
    with pytest.raises(DataError, match=r"cannot be downloaded: .*refused"):
        fetch(things("http://127.0.0.1:9/things.tar.gz", ""), tmp_path)


def test_a_folder_that_cannot_be_created_is_one_error(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot be written"):
        fetch(server.download(), tmp_path / "file")


def test_the_table_of_downloads():
    assert set(DOWNLOADS) < set(SOURCES)
    assert all(download.url.startswith("https://") and len(download.md5) == 32 for download in DOWNLOADS.values())


@pytest.mark.parametrize(
    ("name", "hint"), [("resisc45", "OneDrive"), ("ucf101", "CoOp"), ("cifar", "these can: cifar10")]
)
def test_a_data_set_that_cannot_be_downloaded_names_its_source(tmp_path, name, hint):
    with pytest.raises(DataError, match=f"{name}: cannot be downloaded by this program; .*{hint}"):
        download_dataset(name, tmp_path)
