"""What version 0.1 left on disk is read, and what is damaged is refused in one line.

`version_0_1/state` was written by that version: a site that has played a round and begun another, with noise.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fakes import START, NoisyLearner
from fedcopl.config import RunConfig
from fedcopl.deployment.certificates import site_key
from fedcopl.deployment.processes import process_of
from fedcopl.deployment.server.rounds import ServerFile
from fedcopl.deployment.site.site_state import SiteState
from fedcopl.deployment.status import status_of
from fedcopl.errors import FederationError, RunFolderError
from fedcopl.federation.client import Client
from fedcopl.federation.state_arrays import state_tensors
from fedcopl.messages import Estimate, Select, Train

OLD = Path(__file__).with_name("version_0_1")
SHARED = {"visual": START["visual"]}
NOISE = RunConfig.from_mapping({"rounds": 6, "privacy": {"noise": 2.0}}, "test")
CLIENT = Client(NoisyLearner(1), NOISE, secret=bytes(range(32)))
ASKED = [Estimate(0, SHARED), Select(0, 0, np.array([5, 5, 5]), 2), Train(0, SHARED), Train(1, SHARED)]


class Never:
    def answer(self, ask, state):
        raise AssertionError("worked out twice")


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copytree(OLD, tmp_path / "old"))


@pytest.fixture
def states(old):
    return SiteState(old / "state")


def all_bits(states):
    return {name: array.tobytes() for name, array in state_tensors(states.state()).items()}


def test_a_site_goes_on_from_what_it_had(states, tmp_path):
    copy = SiteState(shutil.copytree(OLD, tmp_path / "copy") / "state")
    again = states.answer(ASKED[-1], 1, Never())  # from disk
    kept = states.state()
    assert again.shared["visual"].shape == SHARED["visual"].shape
    assert kept.selection is not None and kept.secrets.history  # the noise of the run goes on where it was
    for ask in (Estimate(5, SHARED), Select(5, 2, np.array([9, 0, 1]), 2), Train(5, SHARED)):
        one, other = (site.answer(ask, 2, CLIENT) for site in (states, copy))
        assert repr(one) == repr(other)
    assert all_bits(states) == all_bits(copy)


def test_a_server_goes_on_with_its_name_and_its_sites(old):
    file = ServerFile.begin(old / "server.json", "another")
    assert (file.run, file.attempt) == ("fedcopl-5f1c0ffee123", 3)
    file.known.add(["site-c"])
    assert file.known.is_at_home("site-a", "0123456789abcdef", "fedcba9876543210")
    assert not file.known.is_at_home("site-a", "0123456789abcdef", "another")
    kept = json.loads((old / "server.json").read_text())
    assert kept["starts"] == 3 and kept["sites"] == {"site-a": 0, "site-b": 1, "site-c": 2}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"run": "x", "starts": 1, "sites": {}}', '{"run": "x", "starts": 1, "sites": [], "homes": {}}'],
)
def test_a_damaged_server_file_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "server.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"server\.json: is damaged: ") as refusal:
        ServerFile.begin(tmp_path / "server.json", "x")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"round": 1}', '{"path": [], "steps": [], "later": 3}'])
def test_a_damaged_state_is_refused_in_one_line(states, text):
    (states.folder / "now.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"now\.json: is damaged: ") as refusal:
        states.answer(ASKED[-1], 1, CLIENT)
    assert "\n" not in str(refusal.value)


def test_how_a_server_and_a_site_got_on_can_be_asked(old, tmp_path):
    server, site = tmp_path / "federation", tmp_path / "site"
    keys = {"pid": 2**22 + 1, "running": True, "since": 1.0}
    about = {"role": "server", "address": "0.0.0.0:9092", "local": "127.0.0.1:9092", "out": str(tmp_path / "run")}
    site_key(tmp_path / "home", "site-a")
    (server / "sites").mkdir(parents=True)
    shutil.copy(tmp_path / "home/site.pub", server / "sites")
    (server / "working.json").write_text(json.dumps({**about, **keys}))
    found = status_of(server)
    assert (found.running, found.facts["server"], found.facts["rounds done"]) == (False, "not running", "0")
    assert found.sites == [["site-a", "not connected", "", "never", "no end"]]
    assert process_of(server).results == tmp_path / "run"

    shutil.copytree(old / "state", site / "runs/run-1/state")
    (site / "working.json").write_text(json.dumps({"role": "site", "name": "site-a", "server": "x:1", **keys}))
    found = status_of(site)
    assert (found.facts["site"], found.facts["last round"]) == ("site-a, not running", "2")
    assert found.facts["conditions"] == "unknown"
    with pytest.raises(FederationError, match=r"site: is the folder of a site; name that of a server"):
        _ = process_of(site).results


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"role": "site", "pid": "x", "running": true}'])
def test_a_damaged_note_of_who_works_here_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "working.json").write_text(text)
    with pytest.raises(FederationError, match=r"working\.json: cannot be read: ") as refusal:
        process_of(tmp_path)
    assert "\n" not in str(refusal.value)
