"""`fedcopl doctor`, as a user types it: each finding with what to do about it."""

import json
import re
import socket
import ssl
import sys
import threading

import pytest
from typer.testing import CliRunner

from classifier.small import digits
from fedcopl.cli import app
from fedcopl.data.catalog import CLASSES
from fedcopl.deployment.keys import issue_certificates
from fedcopl.doctor import checks
from fedcopl.doctor.new_study import start_study
from fedcopl.errors import ConfigError
from free_ports import closed_port


@pytest.fixture
def study(tmp_path, monkeypatch):
    start_study(tmp_path / "study", backbone="glyph-clip")
    monkeypatch.chdir(tmp_path / "study")
    (tmp_path / "study" / "classes.txt").write_text("\n".join(CLASSES))
    for place, image in enumerate(digits("train", 0, 30)[0]):
        image.save(tmp_path / "study" / f"images/clients/site-{'ab'[place % 2]}/train/{place}.png")
    return tmp_path / "study"


def doctor(*words):
    result = CliRunner().invoke(app, ["doctor", "--json", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    told = json.loads(result.stdout)
    assert result.exit_code == (0 if told["ok"] else 1)
    return told


def about(told, what, level):
    return [finding for finding in told["findings"] if finding["subject"] == what and finding["level"] == level]


def test_a_valid_study_has_no_problems(study):
    told = doctor()
    assert told["ok"]
    assert "10 classes, 30 training and 0 test images" in about(told, "data", "ok")[0]["detail"]
    assert {"python", "packages", "memory", "disk", "cache folder", "device", "threads", "model"} <= {
        finding["subject"] for finding in told["findings"]
    }
    assert all(finding["advice"] for finding in told["findings"] if finding["level"] != "ok")


def test_without_a_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctor()["ok"]


def test_doctor_opens_the_images(study):
    (study / "images/clients/site-a/train/broken\x1b.png").write_bytes(b"?")
    (study / "images/clients/site-b/train/0.png").write_bytes(
        (study / "images/clients/site-a/train/0.png").read_bytes()
    )
    for place in range(3, 30, 2):
        (study / f"images/clients/site-b/train/{place}.png").unlink()
    notes = " ".join(finding["detail"] for finding in about(doctor(), "data", "note"))
    assert "1 file is skipped, " in notes and "1 image is at more than one site" in notes
    assert "site 'site-b': 2 images for 10 classes" in notes
    said = CliRunner().invoke(app, ["doctor"]).stdout
    assert "\x1b" not in said and "0 problems, " in said


def test_skipped_files_have_a_remedy(study, monkeypatch):
    """Photographs of a telephone want a package, and are not to be removed; the command that is named lists all."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # as where it is not installed
    monkeypatch.setitem(sys.modules, "pydicom", None)
    train = study / "images/clients/site-a/train"
    for name in ("a.heic", "b.heic"):
        (train / name).write_bytes(b"\0\0\0\x18ftypheic")
    (train / "c.dcm").write_bytes(b"\0" * 128 + b"DICM")
    for number in range(25):
        (train / f"x{number}.png").write_bytes(b"?")
    lists = "fedcopl data check settings.toml --all"
    notes = {finding["advice"]: finding["detail"] for finding in about(doctor(), "data", "note")}
    assert notes[f"pip install 'fedcopl[heic]'; {lists} lists them"].startswith("2 files are skipped, for example ")
    assert notes["pip install 'fedcopl[dicom]'"].startswith("1 file is skipped, 'clients/site-a/train/c.dcm': DICOM")
    assert notes[f"fix or remove them; {lists} lists them"].startswith("25 files are skipped, for example ")
    listed = CliRunner().invoke(app, lists.split()[1:]).stdout
    assert all(f"{name}: " in listed for name in ("a.heic", "b.heic", "c.dcm", *(f"x{n}.png" for n in range(25))))


def test_a_study_checked_from_another_folder(study, monkeypatch):
    monkeypatch.chdir(study.parent)
    [found] = about(doctor("study"), "data", "problem")
    assert found["advice"] == "paths are relative to the current folder, so first: cd study"


def test_problems(study):
    (study / "settings.toml").write_text("round = 3")
    assert "did you mean rounds" in about(doctor(), "settings", "problem")[0]["detail"]
    (study / "settings.toml").write_text('[model]\nbackbone = "glyph"\n[data]\nsource = "folder"\npath = "nowhere"')
    told = doctor()
    assert about(told, "model", "problem") and about(told, "data", "problem")
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        doctor("nowhere")


def test_a_missing_model_is_not_downloaded(study, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("fedcopl.clip.known_models._download", lambda *_: pytest.fail("fetched"))
    text = (study / "settings.toml").read_text().replace("glyph-clip", "ViT-B/32")
    (study / "settings.toml").write_text(text)
    assert "not on this machine yet" in about(doctor(), "model", "note")[0]["detail"]


def test_an_image_at_two_sites_counts_once_and_a_copy_at_its_own_site_does_not(study):
    site_a, site_b = (study / f"images/clients/site-{letter}/train" for letter in "ab")
    (site_a / "copy.png").write_bytes((site_a / "0.png").read_bytes())
    (site_b / "copy.png").write_bytes((site_a / "2.png").read_bytes())
    (site_b / "again.png").write_bytes((site_a / "2.png").read_bytes())
    details = [finding["detail"] for finding in about(doctor(), "data", "note")]
    assert "1 image is at more than one site" in details


@pytest.mark.parametrize(
    ("address", "host", "port"), [("example.org:9092", "example.org", 9092), ("[::1]:80", "::1", 80)]
)
def test_the_address_of_a_server(address, host, port, monkeypatch):
    def connect(*arguments):
        assert arguments[:2] == (host, port)
        raise OSError("stopped here")

    monkeypatch.setattr(checks, "connect", connect)
    [finding] = checks._check_server(address, None)
    assert finding.detail == f"{address} cannot be reached: stopped here"


@pytest.mark.parametrize("address", ["example.org", ":80", "x:0", "x:70000", "x:y"])
def test_an_invalid_address_of_a_server(address):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        list(checks._check_server(address, None))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return issue_certificates(tmp_path_factory.mktemp("tls"), {"localhost"})


@pytest.fixture
def serve():
    """A server on loopback that greets one guest, with TLS or without."""
    listening = []

    def start(context=None):
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def greet():
            guest, _ = server.accept()
            with guest:
                try:
                    if context:
                        context.wrap_socket(guest, server_side=True).close()
                    else:
                        guest.sendall(b"hello, no TLS here\n")
                except OSError:
                    pass

        threading.Thread(target=greet, daemon=True).start()
        return f"localhost:{server.getsockname()[1]}"

    yield start
    for server in listening:
        server.close()


def test_servers(tmp_path, monkeypatch, serve, certificate):
    monkeypatch.chdir(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    trusted = doctor("--server", serve(context), "--ca", certificate.ca)
    assert trusted["ok"] and "TLS" in about(trusted, "encryption", "ok")[0]["detail"]
    assert "not trusted" in about(doctor("--server", serve(context)), "encryption", "problem")[0]["detail"]
    assert "no TLS" in about(doctor("--server", serve()), "encryption", "problem")[0]["detail"]
    assert (
        "cannot be reached" in about(doctor("--server", f"127.0.0.1:{closed_port()}"), "server", "problem")[0]["detail"]
    )


def test_each_site_is_named_with_its_images(study):
    told = doctor()
    assert [finding["detail"] for finding in about(told, "site", "ok")] == [
        "'site-a': 15 training and 0 test images",
        "'site-b': 15 training and 0 test images",
    ]
    assert about(told, "cost", "ok")[0]["detail"].endswith("for 20 rounds of 10 epochs")


def test_a_long_run_gets_a_smaller_first_run(study, monkeypatch):
    monkeypatch.setattr("fedcopl.doctor.checks._LONG_RUN", 0)
    [cost] = about(doctor(), "cost", "note")
    seconds = r"\(about \d+ seconds?\)"
    assert re.fullmatch(
        rf"for a first try add method=priors {seconds} or rounds=2 epochs=1 {seconds}: priors need no training",
        cost["advice"],
    )


def test_misspelled_folder_names(study):
    (study / "images/clients/site-c/train").mkdir(parents=True)
    (study / "images/clients/site-a/tests/zero").mkdir(parents=True)
    (study / "images/clients/site-a/tests/zero/1.png").write_bytes(
        (study / "images/clients/site-a/train/0.png").read_bytes()
    )
    for name in ("thre", "two"):
        (study / "images/clients/site-b/test" / name).mkdir(parents=True)
    (study / "images/clients/site-b/train/old").mkdir()
    told = doctor()
    assert about(told, "site", "note")[0]["detail"] == "'site-c' holds no image"
    [folder] = about(told, "folders", "note")
    assert folder["detail"] == "clients/site-a/tests/ is not read; its name is close to test/"
    assert about(told, "classes", "note")[0]["detail"] == "no folder for zero, one, three, four, five and 4 more"
    [slip] = about(told, "classes", "problem")  # and not the folder old, which lies beside flat images
    assert (slip["detail"], slip["advice"]) == (
        "the folder 'thre' is no class of classes.txt",
        "rename it to 'three'",
    )


@pytest.mark.parametrize(("load", "is_busy"), [(0.1, False), (99.0, True)])
def test_an_estimate_on_a_busy_machine_says_so(study, monkeypatch, load, is_busy):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0, 0))
    [cost] = [finding for finding in doctor()["findings"] if finding["subject"] == "cost"]
    assert ("(measured now on a busy machine: may be less)" in cost["detail"]) == is_busy


def test_fix_renames_misspelled_folders(study):
    a, b = study / "images/clients/site-a", study / "images/clients/site-b"
    for folder in (a / "Tests", b / "tests", b / "test"):
        folder.mkdir()
    result = CliRunner().invoke(app, ["doctor", "--fix"])
    assert result.stderr.splitlines() == [
        "fixed: images/clients/site-a/Tests is now called test",
        "next: fedcopl run settings.toml method=priors",
    ]
    assert sorted(path.name for path in a.iterdir()) == ["test", "train"]
    assert sorted(path.name for path in b.iterdir()) == ["test", "tests", "train"]  # there something is in the way
