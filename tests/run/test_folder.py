"""The folder of a run: atomic writes, resuming, refusal of foreign files."""

import errno
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.algorithm.select import Selection
from fedcopl.config import RunConfig
from fedcopl.errors import RunFolderError
from fedcopl.federation.client_state import ClientState
from fedcopl.federation.prior_estimation import PriorState
from fedcopl.federation.server import ServerState
from fedcopl.files import make_private_folder, publish_bytes, write_bytes, write_private
from fedcopl.priors.posterior import PosteriorModel
from fedcopl.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedcopl.run.folder import RunFolder, file_name
from fedcopl.run.record import Outcome, RoundRecord

SHARED = {"visual": np.arange(6, dtype=np.float32).reshape(2, 3)}
FULL = ClientState(
    own={"text": np.ones((2, 2), np.float32)},
    log_probs=np.log(np.full((4, 2), 0.5)),
    counts=np.array([1, 2]),
    quota=np.array([2, 2]),
    selection=Selection(np.array([3, 0]), np.array([1, 0])),
    confidence=np.log(np.array([0.5, 0.25])),
    labels=np.array([1, 0, 1, 1], np.int32),
)


ROUNDS = tuple(RoundRecord(round=number, macro=0.1 + 0.2) for number in range(3))


def checkpoint_of(round=3):
    uploads = {"../b": SHARED, "a": {"visual": SHARED["visual"] + 1}}
    server = ServerState(round, SHARED, 2, ("a", "b"), True, 4, uploads)
    return Checkpoint(server, {"a": FULL, "b": ClientState()}, Outcome(rounds=ROUNDS))


def assert_same_state(one, other):
    for name in ("log_probs", "counts", "quota", "confidence", "labels"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert {k: v.tobytes() for k, v in one.own.items()} == {k: v.tobytes() for k, v in other.own.items()}


def test_a_checkpoint_is_restored_bit_for_bit(tmp_path):
    save_checkpoint(tmp_path / "run", checkpoint_of())
    back = load_checkpoint(tmp_path / "run")
    assert back.server.round == 3
    assert back.server.members == ("a", "b")
    assert back.server.shared["visual"].tobytes() == SHARED["visual"].tobytes()
    assert (back.server.full_first_round, back.server.neighbours, list(back.server.uploads)) == (True, 4, ["../b", "a"])
    assert (back.server.uploads["a"]["visual"] == SHARED["visual"] + 1).all()
    assert_same_state(back.clients["a"], FULL)
    assert back.clients["a"].selection.index.tolist() == [3, 0]
    assert back.clients["b"] == ClientState()
    assert list(back.clients) == ["a", "b"]
    assert back.outcome == checkpoint_of().outcome


def test_a_checkpoint_with_the_arrays_of_an_unknown_client_is_damaged(tmp_path):
    save_checkpoint(tmp_path, checkpoint_of())
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes().replace(b"upload/1/", b"upload/7/"))  # found by fuzzing
    with pytest.raises(RunFolderError, match=r"checkpoint\.safetensors: is damaged, so the run cannot be resumed"):
        load_checkpoint(tmp_path)


def test_arrays_shared_by_clients_are_stored_once(tmp_path):
    model = PosteriorModel(np.full(1000, 0.001), np.arange(1000.0))
    state = ClientState(prior=PriorState(totals=(np.arange(5000.0),), model=model))
    clients = {f"{number}": state for number in range(50)}
    save_checkpoint(tmp_path / "run", replace(checkpoint_of(), clients=clients))
    assert (tmp_path / "run" / "checkpoint.safetensors").stat().st_size < 100_000  # not fifty times 56,000
    back = load_checkpoint(tmp_path / "run").clients
    assert list(back) == list(clients)
    assert all(state.prior.model.logit_bias.tolist() == list(range(1000)) for state in back.values())


def test_a_new_folder_gets_its_settings(tmp_path):
    with RunFolder(tmp_path / "deep" / "run") as folder:
        assert folder.open(RunConfig(rounds=3), resume=False) is None
        folder.begin(RunConfig(rounds=3))
    assert "rounds = 3" in (tmp_path / "deep" / "run" / "settings.toml").read_text()


def test_folder_of_a_run_is_not_overwritten(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.begin(RunConfig())
        with pytest.raises(RunFolderError, match="already has a run; add --resume"):
            folder.open(RunConfig(), resume=False)


def test_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"precious")
    with RunFolder(tmp_path) as folder, pytest.raises(RunFolderError, match=r"do not belong to a run \(holiday.jpg\)"):
        folder.open(RunConfig(), resume=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".lock") == ["holiday.jpg"]


def test_resume_refuses_other_settings_and_names_them(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.begin(RunConfig(rounds=3))
        with pytest.raises(RunFolderError, match="started with other settings: rounds is 3, not 4"):
            folder.open(RunConfig(rounds=4), resume=True)


def test_resume_before_the_first_checkpoint_starts_anew(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.begin(RunConfig())
        assert folder.open(RunConfig(), resume=True) is None


@pytest.mark.parametrize("keep", [0, 5, 100])
def test_a_damaged_checkpoint_is_named(tmp_path, keep):
    save_checkpoint(tmp_path, checkpoint_of())
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RunFolderError, match=r"checkpoint\.safetensors: is damaged"):
        load_checkpoint(tmp_path)


def test_checkpoint_with_other_rounds_is_damaged(tmp_path):
    save_checkpoint(tmp_path, checkpoint_of(round=2))
    with pytest.raises(RunFolderError, match="it records 3 rounds after round 2"):
        load_checkpoint(tmp_path)


def test_two_processes_do_not_share_a_folder(tmp_path):
    with (
        RunFolder(tmp_path),
        pytest.raises(RunFolderError, match="another process is running"),
        RunFolder(tmp_path),
    ):
        raise AssertionError("the second one got in")


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(RunFolderError, match="is a file, not a folder"), RunFolder(tmp_path / "run"):
        raise AssertionError("got in")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_bytes(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"results.json: cannot be written: No space left on device"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_folder_of_a_run_that_did_not_start_is_removed(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        folder.open(RunConfig(), resume=False)
    assert not (tmp_path / "run").exists()


def test_resume_detects_added_and_removed_options(tmp_path):
    with_mu, without = RunConfig(method="promptprox", options={"mu": 5.0}), RunConfig(method="promptprox")
    for began, resumed in ((with_mu, without), (without, with_mu)):
        with RunFolder(tmp_path / str(began.options)) as folder:
            folder.begin(began)
            with pytest.raises(RunFolderError, match=r"options\.mu"):
                folder.open(resumed, resume=True)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("", "%"),
        ("%", "%25"),
        ("...", "%2E.%2E"),
        (".lock", "%2Elock"),
        ("../x", "%2E.%2Fx"),
        ("a/../b", "a%2F..%2Fb"),
        ("a.", "a%2E"),
        ("a ", "a%20"),
        (" ", "%20"),
        ("NUL", "%4EUL"),
        ("com1.txt", "%63om1.txt"),
        ("concert", "concert"),
        ("site-a.b c", "site-a.b c"),
    ],
)
def test_file_names_stay_inside_the_folder(tmp_path, name, file):
    assert file_name(name) == file
    assert (tmp_path / "runs" / file).resolve().parent == (tmp_path / "runs").resolve()


@given(st.text(max_size=30), st.text(max_size=30))
def test_file_names_are_unique(one, two):
    names = [file_name(one), file_name(two)]
    assert (names[0] == names[1]) is (one == two)
    for name in names:
        assert name and not set('/\\<>:"|?*\0') & set(name)
        assert not name.startswith(".") and not name.endswith((".", " "))


def test_private_files_are_private_from_the_first_moment(tmp_path, monkeypatch):
    path, seen = tmp_path / "key", []
    (tmp_path / ".key.part").write_bytes(b"left by a stop, for all to read")
    sync = os.fsync

    def look(descriptor):
        seen.append(os.fstat(descriptor).st_mode & 0o777)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    for text in (b"one", b"two"):
        write_private(path, text)
        assert path.read_bytes() == text
    assert [*seen, path.stat().st_mode & 0o777] == [0o600] * 3


def test_public_files_have_default_permissions(tmp_path):
    (tmp_path / "plain").write_text("")
    publish_bytes(tmp_path / "made", b"")
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_private_folder_stays_private(tmp_path):
    for _ in range(2):
        make_private_folder(tmp_path / "deep" / "state")
        assert (tmp_path / "deep" / "state").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFolderError, match="file: is a file, not a folder"):
        make_private_folder(tmp_path / "file")


@pytest.mark.parametrize("name", ["plain", "../up", "..", "", "数" * 90, "a" * 400, "\udcff"])
def test_any_name_of_a_client_makes_a_file(tmp_path, name):
    server = ServerState(1, SHARED, 2)
    with RunFolder(tmp_path / "run") as folder:
        folder.write_prompts(server, {name: FULL, name + "!": FULL})
    written = list((tmp_path / "run" / "prompts" / "clients").iterdir())
    assert len(written) == 2


def test_records_can_be_longer_than_a_safetensors_header(tmp_path):
    long = Outcome(name="x" * 120_000_000)
    save_checkpoint(tmp_path, Checkpoint(ServerState(0, SHARED, 2), {}, long))
    assert load_checkpoint(tmp_path).outcome == long
