"""Every command reports an output that cannot be written before its work."""

import pytest
from typer.testing import CliRunner

from fedcopl.cli import app
from fedcopl.errors import RunFolderError

WORK = {  # command: the first work that it would do
    "predict run.png -c run --out {}": "fedcopl.classifier.loading.load",
    "export run --out {}": "fedcopl.classifier.loading.FinishedRun",
    "report run --out {}": "fedcopl.run.folder.find_runs",
    "review run --client a --export {}": "fedcopl.review.images.open_gallery",
    "review run --client a --manifest {}": "fedcopl.review.images.open_gallery",
    "audit run --out {}": "fedcopl.deployment.audit_log.read_audit",
    "data show digits --out {}": "fedcopl.cli.data.load_dataset",
    "data get cifar10 {}": "fedcopl.cli.data.download_dataset",
    "provision study.toml --out {}": "fedcopl.deployment.provision.prepare_study",
    "run --out {}": "fedcopl.simulation.simulate.assemble",
    "server --classes classes.txt --out {}": "fedcopl.deployment.server.rounds.build_clip",
    "reproduce table1 --out {}": "fedcopl_experiments.grid_runner.run_grid",
}
FOLDERS = ("export", "data", "provision", "run", "server", "reproduce")


def refused(command, out, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(WORK[command], lambda *_, **__: pytest.fail("worked first"))
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "run.png").touch()
    result = CliRunner().invoke(app, command.format(out).split())
    assert isinstance(result.exception, RunFolderError), result.output
    return str(result.exception)


@pytest.mark.parametrize("command", WORK)
def test_output_below_a_file_is_refused(command, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    said = refused(command, "file/answers.csv", monkeypatch, tmp_path)
    assert said == f"file/answers.csv: cannot be written: {tmp_path / 'file'} is a file, not a folder"


@pytest.mark.parametrize("command", WORK)
def test_a_file_is_not_a_folder_and_a_folder_is_not_a_file(command, monkeypatch, tmp_path):
    is_folder = command.startswith(FOLDERS)
    (tmp_path / "out.csv").touch() if is_folder else (tmp_path / "out.csv").mkdir()
    said = refused(command, "out.csv", monkeypatch, tmp_path)
    assert said.endswith("is a file, not a folder" if is_folder else "is a folder; name a file to write")


@pytest.mark.parametrize("command", [words for words in WORK if words.startswith(("export", "run", "server"))])
def test_output_to_a_folder_in_use_is_refused(command, monkeypatch, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").touch()
    assert "choose another" in refused(command, "out", monkeypatch, tmp_path)


@pytest.mark.parametrize("command", [words for words in WORK if words.startswith(("predict", "review"))])
def test_an_existing_output_file_is_kept(command, monkeypatch, tmp_path):
    (tmp_path / "out.csv").touch()
    assert "already exists" in refused(command, "out.csv", monkeypatch, tmp_path)


@pytest.mark.parametrize("command", WORK)
def test_output_to_a_read_only_folder_is_refused(command, monkeypatch, tmp_path):
    """Asked of the system, which may answer that everything is allowed to whoever runs the tests."""
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path / "locked")
    (tmp_path / "locked").mkdir()
    said = refused(command, "locked/out.csv", monkeypatch, tmp_path)
    assert said.startswith(f"locked/out.csv: cannot be written: no permission to write to {tmp_path / 'locked'}")
