"""Metrics and health of the folders of a server and a site; no Flower is started."""

import json
import urllib.request
from urllib.error import HTTPError

import pytest

from fedcopl.deployment.monitoring import (
    ReplyCounts,
    _Metric,
    _prometheus_text,
    _respond,
    health,
    metrics_port,
    server_metrics,
    site_metrics,
)
from fedcopl.deployment.processes import locked_folder
from fedcopl.errors import ConfigError, FederationError
from fedcopl.run.record import HoldoutRecord, RoundRecord, round_to_plain
from free_ports import free_port
from waiting import WAIT_LIMIT

ROUNDS = [
    RoundRecord(round=0, participants=3, bytes_up=10, bytes_down=5, seconds=4.0, dropped={"b": "Train: refused: no"}),
    RoundRecord(
        round=1,
        participants=2,
        bytes_up=20,
        bytes_down=5,
        seconds=9.5,
        dropped={"a": "Train: not finite", "b": "Train: refused: no"},
        holdout=HoldoutRecord(trainings_rolled_back=2, server_rolled_back=True),
    ),
]


@pytest.fixture
def server(tmp_path, monkeypatch):
    out = tmp_path / "run"
    out.mkdir()
    (out / "rounds.jsonl").write_text("".join(json.dumps(round_to_plain(one)) + "\n" for one in ROUNDS))
    monkeypatch.setattr("fedcopl.deployment.monitoring.read_site_keys", lambda folder: {"a": None, "b": None})
    monkeypatch.setattr("fedcopl.deployment.monitoring._connected_sites", lambda process: {"a": ("connected", "")})
    with locked_folder(tmp_path / "federation", "server", {"out": str(out), "local": "x", "address": "x"}):
        yield tmp_path / "federation"


def numbers(metrics):
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines(metrics)}


def lines(metrics):
    return [line for line in _prometheus_text(metrics).splitlines() if not line.startswith("#")]


def test_a_server_counts_its_run(server):
    assert numbers(server_metrics(server)) == {
        "fedcopl_rounds": 2,
        'fedcopl_site_connected{site="a"}': 1,
        'fedcopl_site_connected{site="b"}': 0,
        "fedcopl_participants": 2,
        "fedcopl_run_seconds": 9.5,
        'fedcopl_message_bytes{direction="up"}': 30,
        'fedcopl_message_bytes{direction="down"}': 10,
        'fedcopl_dropped_replies{site="a"}': 1,
        'fedcopl_dropped_replies{site="b"}': 2,
        'fedcopl_refusals{site="b"}': 2,
        'fedcopl_rollbacks{event="training"}': 2,
        'fedcopl_rollbacks{event="low_confidence"}': 0,
        'fedcopl_rollbacks{event="average"}': 1,
    }


def test_without_a_superlink_no_site_is_connected(server, monkeypatch):
    def silent(process):
        raise FederationError("the server does not answer")

    monkeypatch.setattr("fedcopl.deployment.monitoring._connected_sites", silent)
    assert numbers(server_metrics(server))['fedcopl_site_connected{site="a"}'] == 0


def test_a_site_counts_its_replies(tmp_path):
    counts = ReplyCounts()
    counts.add("train", 1.5, refused=False)
    counts.add("train", 0.5, refused=False)
    counts.add("estimate", 0.25, refused=True)
    counts.connected = True
    assert numbers(site_metrics(tmp_path, counts)) == {
        "fedcopl_connected": 1,
        'fedcopl_replies{request="train"}': 2,
        'fedcopl_refusals{request="estimate"}': 1,
        'fedcopl_reply_seconds{request="train"}': 2,
        'fedcopl_reply_seconds{request="estimate"}': 0.25,
    }


def test_names_are_escaped_in_labels():
    assert lines([_Metric("up", "", {'a"} 9\nfedcopl_x 1': 1}, "site")]) == [
        'fedcopl_up{site="a\\"} 9\\nfedcopl_x 1"} 1'
    ]


def test_health_reports_errors(server):
    assert health(server) == {"status": "ok", "role": "server", "errors": []}
    (server / "ca.pem").write_text("no certificate")
    assert health(server)["status"] == "error"
    assert health(server / "nowhere")["status"] == "error"


def healthy():
    return {"status": "ok"}


def test_the_metrics_port_serves_this_machine_and_no_other_origin():
    with metrics_port(0, list, healthy) as port:
        assert port == 0  # no port
    with metrics_port(free_port(), lambda: [_Metric("x", "An x.", 1)], healthy) as port:
        assert get(port, "/metrics") == (200, "# HELP fedcopl_x An x.\n# TYPE fedcopl_x gauge\nfedcopl_x 1\n")
        assert get(port, "/health") == (200, '{"status": "ok"}\n')
        assert get(port, "/")[0] == 404
        assert get(port, "/metrics", host="evil.example:80")[0] == 403
        with (
            pytest.raises(ConfigError, match=f"--metrics-port {port}: cannot be used"),
            metrics_port(port, list, healthy),
        ):
            pass


def test_errors_have_status_503():
    assert _respond(list, lambda: {"status": "error"}, "/health")[0] == 503

    def broken():
        raise FederationError("the folder is gone")

    assert _respond(broken, healthy, "/metrics")[0] == 503


def get(port, path, host=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_LIMIT) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        return error.code, ""
