"""Service files: units, containers, rotated logs, and the end on SIGTERM."""

import io
import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from typer.main import get_command

from fedcopl.cli import app
from fedcopl.cli.server import _unfinished_run
from fedcopl.config import RunConfig
from fedcopl.deployment.processes import Service, locked_folder, stopping_on_sigterm, write_log
from fedcopl.deployment.terms import differences, terms_of
from fedcopl.errors import ConfigError, Interrupted

SITE = Service("site", Path("/srv/fedcopl"), Path("/data/images"), arguments=("model.threads=1",))
SERVER = Service("server", Path("/srv/fedcopl"))


def setting(unit, name):
    return re.search(rf"^{name}=(.*)$", unit, re.M).group(1)


@pytest.mark.parametrize("service", [SITE, SERVER], ids=["site", "server"])
def test_the_command_of_a_unit_is_one_that_exists(service):
    command = shlex.split(setting(service.systemd_unit(), "ExecStart"))
    assert command[1:3] == ["-m", "fedcopl"] and os.access(command[0], os.X_OK)
    known = get_command(app).commands[command[3]]
    options = {name for parameter in known.params for name in parameter.opts}
    assert {word for word in command[4:] if word.startswith("--")} <= options


@pytest.mark.parametrize("service", [SITE, SERVER], ids=["site", "server"])
def test_a_unit_writes_to_one_folder_and_stops_without_an_error(service):
    unit = service.systemd_unit()
    assert setting(unit, "ProtectSystem") == "strict"
    assert setting(unit, "ReadWritePaths") == setting(unit, "WorkingDirectory") == "/srv/fedcopl"
    assert setting(unit, "SuccessExitStatus") == str(Interrupted.exit_code)
    assert setting(unit, "User") == "fedcopl"


def test_a_site_only_reads_its_images():
    assert setting(SITE.systemd_unit(), "ReadOnlyPaths") == "/data/images"
    assert "-v /data/images:/images:ro" in SITE.containerfile("1.2.3")


def test_a_container_address_is_not_local():
    made = SERVER.containerfile("1.2.3")
    assert re.search(r"^USER \d{5}$", made, re.M)
    assert '"fedcopl[flower,privacy]==1.2.3"' in made
    assert 'CMD ["server", "--folder", "/home/fedcopl/federation", "--auto-resume"]' in made
    assert "--network=host" in made and " -p " not in made  # with a forwarded port all clients would look local


def test_paths_that_a_unit_cannot_contain_are_refused():
    with pytest.raises(ConfigError, match="--images: is missing; give the folder of this site's images"):
        Service("site", Path("/srv"))
    with pytest.raises(ConfigError, match="a path without spaces"):
        Service("server", Path("/srv/my folder"))


def test_sigterm_interrupts_like_ctrl_c():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stopping_on_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_log_is_rotated(tmp_path):
    lines = b"".join(b"line %d\n" % number for number in range(7))  # 7 bytes each: one per file
    write_log(io.BytesIO(lines), tmp_path / "log", max_bytes=10, backups=2).join()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "log": b"line 6\n",
        "log.1": b"line 5\n",
        "log.2": b"line 4\n",
    }


def test_a_service_continues_an_unfinished_run(tmp_path):
    home, out = tmp_path / "federation", tmp_path / "run"
    assert _unfinished_run(home) is None
    out.mkdir()
    with locked_folder(home, "server", {"out": str(out)}):
        assert _unfinished_run(home) is None  # nothing to continue
    (out / "checkpoint.safetensors").touch()
    assert _unfinished_run(home) == out
    (out / "results.json").touch()
    assert _unfinished_run(home) is None


@pytest.mark.parametrize(("server", "site", "fits"), [("0.1.0", "0.1.7", True), ("0.1.0", "0.2.0", False)])
def test_versions_may_differ_by_a_patch(monkeypatch, server, site, fits):
    from fedcopl.deployment import terms

    monkeypatch.setattr(terms, "version", lambda package: server)
    server_terms = terms_of("run", 1, RunConfig(), ["a", "b"], "model 1")
    monkeypatch.setattr(terms, "version", lambda package: site)
    reasons = differences(server_terms, server_terms.classes, "model 1")
    assert reasons == ([] if fits else ["fedcopl: the server has 0.1.0, this site has 0.2.0"])
