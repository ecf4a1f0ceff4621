"""The audit log: every message is in it, and tampering is detected."""

import csv
import json
import shutil
from hashlib import sha256

import pytest
from typer.testing import CliRunner

from deployment.toolbox import FakeSite, LoopGrid, terms
from fakes import NO_PRIORS, clients, run, start
from fedcopl.cli import app
from fedcopl.config import RunConfig
from fedcopl.deployment.audit_log import _HEAD, AUDIT, AuditLog, AuditMessage, read_audit
from fedcopl.deployment.message_format import _content_bytes
from fedcopl.deployment.server.grid_transport import GridTransport, KnownSites, Timeouts
from fedcopl.deployment.site.pipeline import reply_to
from fedcopl.errors import RunFolderError
from fedcopl.messages import Evaluate

CONFIG = RunConfig.from_mapping({"rounds": 2, "priors": NO_PRIORS, "privacy": {"secure_aggregation": True}}, "test")


class RecordingGrid(LoopGrid):
    """Records the bytes of all messages."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.transmitted = {name: [] for name in nodes}

    def push_messages(self, messages):
        for message in messages:
            self.transmitted[self.name_of(message.metadata.dst_node_id)].append(("in", _content_bytes(message.content)))
        return super().push_messages(messages)

    def _reply(self, message):
        reply = super()._reply(message)
        self.transmitted[self.name_of(message.metadata.dst_node_id)].append(("out", _content_bytes(reply.content)))
        return reply


@pytest.fixture
def finished_run(tmp_path):
    """A finished run with secure aggregation: the grid, and the folder of all logs."""
    nodes = {}
    for name, client in clients(CONFIG).items():
        site = FakeSite(name, client, tmp_path / "states")
        home = tmp_path / name
        nodes[name] = lambda message, site=site, home=home: reply_to(
            message, lambda: site, AuditLog(home), "server:9092"
        )
    grid, known = RecordingGrid(nodes), KnownSites({name: number for number, name in enumerate(nodes)})
    federation = GridTransport(
        grid, terms(CONFIG), known, Timeouts(60, 3, 0.0), audit=AuditLog(tmp_path / "server").write
    )
    run(CONFIG, federation, start(), lambda *_: None)
    return grid, tmp_path


def test_every_message_is_in_the_audit_log(finished_run):
    grid, folder = finished_run
    for name, transmitted in grid.transmitted.items():
        lines = read_audit(folder / name)
        logged = [(line.direction, line.bytes, line.digest) for line in lines]
        assert logged == [(side, len(content), sha256(content).hexdigest()) for side, content in transmitted]
        assert {one.kind for one in lines} >= {"setupkeys", "estimate", "train", "evaluate"}
        assert {(one.run, one.peer) for one in lines} == {("run", "server:9092")}
        # The server's log has the same digests with the opposite directions.
        other_side = {"in": "out", "out": "in"}
        at_server = [line for line in read_audit(folder / "server") if line.peer == name]
        assert sorted((other_side[line.direction], line.digest) for line in at_server) == sorted(
            (line.direction, line.digest) for line in lines
        )


CHANGES = {
    "a line edited": lambda lines: [*lines[:3], lines[3].replace(b"received", b"answered"), *lines[4:]],
    "a line taken out": lambda lines: [*lines[:3], *lines[4:]],
    "the first taken out": lambda lines: lines[1:],
    "two exchanged": lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
    "the end cut off": lambda lines: lines[:-1],
    "all but the first cut off": lambda lines: lines[:1],
    "a line twice": lambda lines: [*lines[:4], lines[3], *lines[4:]],
    "everything gone": lambda lines: [],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_tampering_is_detected(tmp_path, change):
    log = AuditLog(tmp_path, lambda: 1.0)
    for number in range(8):
        log.write(
            AuditMessage("in", "server", "run", "1", "train", number, sha256(bytes([number])).hexdigest(), "received")
        )
    assert len(read_audit(tmp_path)) == 8
    lines = (tmp_path / AUDIT).read_bytes().splitlines(keepends=True)
    (tmp_path / AUDIT).write_bytes(b"".join(change(lines)))
    with pytest.raises(RunFolderError, match=r"audit\.jsonl: was tampered with"):
        read_audit(tmp_path)


def test_a_log_that_was_written_again_names_the_line_in_which_it_differs(tmp_path):
    for folder, decision in (("true", "received"), ("forged", "refused")):
        for number in range(3):
            AuditLog(tmp_path / folder, lambda: 1.0).write(
                AuditMessage("in", "server", "run", "1", "train", number, "0", decision)
            )
    (tmp_path / "true" / AUDIT).write_bytes((tmp_path / "forged" / AUDIT).read_bytes())
    with pytest.raises(RunFolderError, match=r"line 3 of 3 is not that of audit\.head"):
        read_audit(tmp_path / "true")


def test_an_incomplete_line_is_skipped(tmp_path):
    log, one = AuditLog(tmp_path), AuditMessage("in", "server", "run", "1", "train", 1, "0", "received")
    log.write(one)
    with (tmp_path / AUDIT).open("ab") as file:
        file.write(b'{"number": 2, "ti')
    log.write(one)
    assert [line.number for line in read_audit(tmp_path)] == [1, 2]
    assert (tmp_path / AUDIT).stat().st_mode & 0o777 == 0o600 == (tmp_path / _HEAD).stat().st_mode & 0o777


def test_a_request_that_cannot_be_logged_is_refused(tmp_path):
    (tmp_path / "home" / AUDIT).mkdir(parents=True)  # nothing can be added to a folder
    site = FakeSite("client-0", clients(CONFIG)["client-0"], tmp_path)
    grid = LoopGrid({"client-0": lambda message: reply_to(message, lambda: site, AuditLog(tmp_path / "home"), "s")})
    federation = GridTransport(grid, terms(CONFIG), KnownSites({"client-0": 0}), Timeouts(60, 0, 0.0))
    assert federation.request({"client-0": Evaluate(0, None)}) == {} and site.computed == 0


def test_the_command_shows_verifies_and_exports(finished_run, tmp_path):
    _, folder = finished_run
    site = folder / "client-1"
    shown = CliRunner().invoke(app, ["audit", str(site), "--last", "3"])
    assert shown.exit_code == 0, shown.output
    count = len(read_audit(site))
    assert f"verified: {count} lines, none changed; the head is " in shown.output
    assert f"{count // 2} in, " in shown.output and "0 refused or dropped" in shown.output
    exported = CliRunner().invoke(app, ["audit", str(site), "--out", str(tmp_path / "out.csv")])
    assert f"{count} messages written" in exported.output
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert len(rows) == count and rows[0]["kind"] == "setupkeys" and len(rows[0]["digest"]) == 64
    head = json.loads((site / AUDIT).read_text().splitlines()[-1])["chain"]
    assert rows[-1]["chain"] == head
    shutil.copytree(site, tmp_path / "copy")
    (tmp_path / "copy" / _HEAD).unlink()
    broken = CliRunner().invoke(app, ["audit", str(tmp_path / "copy")])
    assert isinstance(broken.exception, RunFolderError) and "audit.head" in str(broken.exception)
