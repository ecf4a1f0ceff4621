"""Files of a server and of a site after a restart; a damaged one is refused in one line."""

import json
import shutil

import pytest

from fakes import START, NoisyLearner
from fedcopl.config import RunConfig
from fedcopl.deployment.keys import site_key
from fedcopl.deployment.monitoring import status_of
from fedcopl.deployment.processes import process_of
from fedcopl.deployment.server.grid_transport import KnownSites
from fedcopl.deployment.site.site_state import SiteState
from fedcopl.errors import FederationError, RunFolderError
from fedcopl.federation.client import Client
from fedcopl.messages import Estimate

CLIENT = Client(NoisyLearner(1), RunConfig.from_mapping({"rounds": 6}, "test"))
ASK = Estimate(1, {"visual": START["visual"]})
SERVER = {
    "run": "fedcopl-5f1c0ffee123",
    "starts": 2,
    "sites": {"site-a": 0, "site-b": 1},
    "folders": {"site-a": "0123456789abcdef fedcba9876543210"},
}


def reply(step, state):
    return CLIENT.handle(ASK, state)


@pytest.fixture
def states(tmp_path):
    """A site that has replied once, in its second round."""
    made = SiteState(tmp_path / "state")
    made.handle(ASK, 1, reply)
    return made


def test_a_restarted_server_keeps_its_run_and_sites(tmp_path):
    path = tmp_path / "server.json"
    path.write_text(json.dumps(SERVER))
    known = KnownSites.at_start(path, "another")
    assert (known.run, known.starts) == ("fedcopl-5f1c0ffee123", 3)
    known.add(["site-c"])
    assert known.is_same_folder("site-a", "0123456789abcdef", "fedcba9876543210")
    assert not known.is_same_folder("site-a", "0123456789abcdef", "another")
    kept = json.loads(path.read_text())
    assert kept["starts"] == 3 and kept["sites"] == {"site-a": 0, "site-b": 1, "site-c": 2}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"run": "x", "starts": 1, "sites": {}}',
        '{"run": "x", "starts": 1, "sites": [], "folders": {}}',
    ],
)
def test_a_damaged_server_file_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "server.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"server\.json: is damaged: ") as refusal:
        KnownSites.at_start(tmp_path / "server.json", "x")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"round": 1}', '{"path": [], "steps": [], "later": 3}'])
def test_a_damaged_state_is_refused_in_one_line(states, text):
    (states.folder / "now.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"now\.json: is damaged: ") as refusal:
        states.handle(ASK, 1, reply)
    assert "\n" not in str(refusal.value)


def test_status_of_a_stopped_server_and_site(states, tmp_path):
    server, site = tmp_path / "federation", tmp_path / "site"
    keys = {"pid": 2**22 + 1, "running": True, "since": 1.0}
    about = {"role": "server", "address": "0.0.0.0:9092", "local": "127.0.0.1:9092", "out": str(tmp_path / "run")}
    site_key(tmp_path / "home", "site-a")
    (server / "sites").mkdir(parents=True)
    shutil.copy(tmp_path / "home/site.pub", server / "sites")
    (server / "working.json").write_text(json.dumps({**about, **keys}))
    found = status_of(server)
    assert (found.running, found.facts["server"], found.facts["finished rounds"]) == (False, "not running", "0")
    assert found.sites == [["site-a", "not connected", "", "never", "does not expire"]]
    assert process_of(server).results == tmp_path / "run"

    shutil.copytree(states.folder, site / "runs/run-1/state")
    about = {"role": "site", "name": "site-a", "server": "x:1", "conditions": "any"}
    (site / "working.json").write_text(json.dumps({**about, **keys}))
    found = status_of(site)
    assert (found.facts["site"], found.facts["last round"]) == ("site-a, not running", "2")
    assert found.facts["conditions"] == "any"
    with pytest.raises(FederationError, match=r"site: belongs to a site; name the folder of a server"):
        _ = process_of(site).results


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"role": "site", "pid": "x", "running": true}'])
def test_a_damaged_process_file_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "working.json").write_text(text)
    with pytest.raises(FederationError, match=r"working\.json: cannot be read: ") as refusal:
        process_of(tmp_path)
    assert "\n" not in str(refusal.value)
