"""`fedcopl server`, `join`, `status` and `stop`, as a user types them."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deployment.toolbox import digit_sites
from fedcopl.cli import main
from fedcopl.cli.server import _without_prototypes
from fedcopl.cli.show import print_outcome, print_status
from fedcopl.config import RunConfig
from fedcopl.deployment.keys import issue_certificates
from fedcopl.deployment.monitoring import status_of
from fedcopl.errors import FederationError
from fedcopl.privacy.accountant import Release, epsilon_of, privacy_statement
from fedcopl.run.record import Outcome, RoundRecord, round_to_plain
from free_ports import free_port
from preloaded_processes import run_preloaded
from waiting import WAIT_LIMIT, until


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("federation")
    digit_sites(root / "data", 1, 12)
    issue_certificates(root / "certificates", {"localhost"})
    return root


SITE = ["--images", "data/clients/site-a", "--classes", "data/classes.txt", "--name", "site-a", "--server", "x:1"]
SERVER = ["server", "--classes", "data/classes.txt"]
MISTAKES = {
    "nothing said": (["join"], 2, "--images: is missing; give the folder of this site's images"),
    "a package, but no images": (
        ["join", "site.fedcopl"],
        2,
        "--images: is missing; give the folder of this site's images",
    ),
    "a folder that is not there": (
        ["join", *SITE[:2], "--folder", "hospitl"],
        2,
        "hospitl: there is no such folder; give the package of this site, or --server, --ca and --classes, or another",
    ),
    "a folder of something else": (
        ["join", *SITE[:2], "--folder", "data"],
        2,
        "data: no package is installed in this folder;",
    ),
    "no such settings to agree to": (["join", *SITE, "--accept", "no.toml"], 2, "--accept no.toml: there is no such"),
    "no server": (["join", *SITE[:6]], 2, "--server: is missing; give the server's address"),
    "a server without a port": (
        ["join", *SITE[:6], "--server", "x", "--images", "no"],
        10,
        "x: is not an address; write",
    ),
    "no such certificate of a server": (["join", *SITE, "--ca", "no.pem"], 10, "no.pem: is not the CA certificate of"),
    "a name of nothing": (["join", *SITE, "--name", " "], 2, "--name: ' ' must have 1 to 60"),
    "the server's setting": (["join", *SITE, "rounds=3"], 2, "rounds: is set by the server"),
    "the method's setting": (["join", *SITE, "model.text_prompts=3"], 2, "model.text_prompts: is set by the server"),
    "no such images": (["join", *SITE, "--images", "no"], 3, "no: there is no such folder"),
    "no such model": (["join", *SITE, "model.backbone=glyph"], 4, "glyph: no such file or folder"),
    "no classes": (["server"], 2, "--classes: is missing"),
    "no such classes": (["server", "--classes", "no.txt"], 3, "no.txt: there is no such list of classes"),
    "a wrong setting": ([*SERVER, "round=3"], 2, "round: unknown setting"),
    "no such method": ([*SERVER, "method=fedcop"], 2, "method: unknown method 'fedcop'"),
    "a folder that is taken": ([*SERVER, "--out", "data"], 7, "data: has files that do not belong to a run"),
    "an address with a port": (
        [*SERVER, "--address", "server.example:9092"],
        2,
        "--address: 'server.example:9092' is not a host name or IP address",
    ),
    "no such certificate": ([*SERVER, "--certificates", "a", "b", "c"], 10, "a: there is no such certificate"),
    "nothing to resume": (["server", "--resume"], 10, "federation: is not the folder of a server or a site"),
    "nobody to ask": (["status"], 10, "federation: is not the folder of a server or a site"),
    "nobody to stop": (["stop", "--folder", "x"], 10, "x: is not the folder of a server or a site"),
}


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_user_error_is_one_line_and_an_exit_code(place, tmp_path, monkeypatch, capsys, words, code, message):
    (tmp_path / "data").symlink_to(place / "data")
    (tmp_path / "ca.pem").symlink_to(place / "certificates/ca.pem")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedcopl", *words])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert left.value.code == code, said.err
    assert f"fedcopl: {message}" in said.err.splitlines()[-1]
    assert not (tmp_path / "federation").exists() or "certificate" in message  # nothing was begun


@pytest.fixture(scope="module")
def checked(place):
    return run_preloaded("join", "--check", *SITE, "--folder", "home", "model.threads=1", cwd=place)


def test_check_prints_what_leaves_and_does_not_connect(checked, place):
    assert checked.returncode == 0, checked.stderr
    for words in (
        "site                  site-a",
        "images                12, 0 skipped",
        "10 classes, ",
        "glyph-clip ",
    ):
        assert words in checked.stdout
    leaves, never = checked.stdout.split("What never leaves it:")
    assert "Trained.shared" in leaves and "Estimated.counts" in leaves
    assert "images, file names, labels, predictions" in never
    assert (place / "home/site.pub").read_text().endswith(" site-a\n")
    assert not (place / "home/working.json").exists()
    sent = "send home/site.pub to the operator of the server"
    assert checked.stderr.endswith(f"next: {sent}, then run the same command without --check\n")


def test_check_prints_the_command_that_lists_skipped_files(checked, place, monkeypatch, capsys):
    broken = place / "data/clients/site-a/train/broken.png"
    broken.write_bytes(b"?")
    process = run_preloaded("join", "--check", *SITE, "--folder", "home", "model.threads=1", cwd=place)
    [listing] = re.findall("1 skipped: fedcopl (.*) lists them", process.stdout)
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["fedcopl", *shlex.split(listing)])
    with pytest.raises(SystemExit):
        main()
    broken.unlink()
    assert "1 skipped:\n  train/broken.png: not an image of a known format" in capsys.readouterr().out


def test_an_invalid_certificate_ends_a_join(checked, place):
    (place / "wrong.pem").write_text("hello")
    process = run_preloaded("join", *SITE, "--folder", "home", "--ca", "wrong.pem", cwd=place)
    assert process.returncode == 10
    assert "fedcopl: wrong.pem: is not the CA certificate of a server" in process.stderr


@pytest.mark.slow
def test_status_and_stop_of_a_waiting_server(place, monkeypatch, capsys):
    def told(*words):
        monkeypatch.setattr(sys, "argv", ["fedcopl", *words])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr()

    monkeypatch.chdir(place)
    words = [*SERVER, "--host", "127.0.0.1", "--port", str(free_port()), "--out", "run"]
    with (place / "server.log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-m", "fedcopl", *words], cwd=place, stderr=log)
    try:
        until(
            lambda: "waiting: 0 of at least 2 sites" in (place / "server.log").read_text(),
            (place / "server.log").read_text,
        )
        assert "another process is running in this folder" in told(*words).err
        status = json.loads(told("status", "--json").out)
        assert status["running"] and status["sites"] == [] and status["rounds"] == []
        assert told("stop").out == "stopped\n"
        assert server.wait(WAIT_LIMIT) == 130
        assert "fedcopl: stopped" in (place / "server.log").read_text()
        assert told("stop").out == "nothing is running in federation\n"
        assert json.loads(told("status", "--json").out)["running"] is False
    finally:
        if server.poll() is None:
            os.kill(server.pid, signal.SIGKILL)
            server.wait()


def link_of(server):
    """The process id of a server's SuperLink: it is told whose child it is."""
    told = f"fedcopl.deployment.flower_internals.superlink\0{server.pid}\0".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if told in (place / "cmdline").read_bytes():
                return int(place.name)
        except OSError:
            continue  # it has just ended
    raise AssertionError("the server has no SuperLink")


@pytest.mark.slow
def test_a_server_ends_with_one_line_if_its_superlink_dies(place):
    words = [*SERVER, "--host", "127.0.0.1", "--port", str(free_port()), "--folder", "orphan", "--out", "orphan-run"]
    with (place / "orphan.log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-m", "fedcopl", *words], cwd=place, stderr=log)
    try:
        until(
            lambda: "waiting: 0 of at least 2 sites" in (place / "orphan.log").read_text(),
            (place / "orphan.log").read_text,
        )
        os.kill(link_of(server), signal.SIGKILL)
        assert server.wait(WAIT_LIMIT) == 10
        said = (place / "orphan.log").read_text().splitlines()
        assert said[-1] == "fedcopl: the SuperLink has ended; see orphan/flower/superlink.log; continue with --resume"
        assert "Traceback" not in "".join(said)
    finally:
        if server.poll() is None:
            os.kill(server.pid, signal.SIGKILL)
            server.wait()


ROUND = RoundRecord(
    round=0,
    participants=2,
    sites=("a", "b"),
    bytes_up=10,
    bytes_down=10,
    releases=(Release("prompts", 2.0, ("a", "b")),) * 3,
)


def private_run(place):
    """A server's folder and the folder of its run, as they are after a round with noise."""
    config = RunConfig.from_mapping({"privacy": {"secure_aggregation": True, "noise_multiplier": 2.0}}, "test")
    run, folder = place / "run", place / "federation"
    run.mkdir(parents=True)
    folder.mkdir()
    (run / "settings.toml").write_text(config.to_toml())
    (run / "rounds.jsonl").write_text(json.dumps(round_to_plain(ROUND)) + "\n")
    about = {"role": "server", "address": "x:1", "local": "x:1", "out": str(run), "pid": 0, "running": False}
    (folder / "working.json").write_text(json.dumps(about))
    return config, folder


def test_epsilon_is_printed_at_the_end_and_in_the_status(tmp_path, capsys):
    config, folder = private_run(tmp_path)
    account = f"epsilon {epsilon_of([2.0] * 3, config.privacy.delta):.3g}, delta {config.privacy.delta:g} for one site"
    outcome = Outcome(
        name="run", sites=("a", "b"), rounds=(ROUND,), privacy=privacy_statement(config, ROUND.releases), seconds=1.0
    )
    for show in (lambda: print_outcome(outcome, tmp_path), lambda: print_status(status_of(folder))):
        show()
        said = capsys.readouterr().out
        assert f"privacy               {account}, 3 releases\n" in said
        assert "the server sees       sums over the clients only, with noise\n" in said

    print_outcome(replace(outcome, privacy=None), tmp_path)
    assert "privacy" not in capsys.readouterr().out.replace(str(tmp_path), "")


def test_status_of_a_site_that_has_not_run(checked, place):
    with pytest.raises(FederationError, match=r"home: has not run yet$"):
        status_of(place / "home")


def test_status_prints_the_conditions_of_a_site(tmp_path, capsys):
    about = {"role": "site", "name": "a", "server": "x:1", "conditions": "it shares", "pid": 0, "running": False}
    (tmp_path / "working.json").write_text(json.dumps(about))
    print_status(status_of(tmp_path))
    assert "conditions            it shares\n" in capsys.readouterr().out


def test_without_secure_aggregation_the_server_starts_without_prototypes(capsys):
    assert not _without_prototypes(RunConfig()).priors.prototypes
    assert "note: priors.prototypes is off: sites send class feature sums only with" in capsys.readouterr().err
    for settings in (
        {"privacy": {"secure_aggregation": True}},
        {"priors": {"prototypes": False}},
        {"method": "zeroshot"},
    ):
        config = RunConfig.from_mapping(settings, "test")
        assert _without_prototypes(config) is config
    assert capsys.readouterr().err == ""
