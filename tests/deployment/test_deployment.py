"""Deployments with real processes on loopback, with failures."""

import json
import os
import re
import resource
import shlex
import shutil
import signal
from pathlib import Path

import httpx
import pytest
from safetensors.numpy import load_file

from deployment.deployment import SETTINGS, TIMEOUT, Deployment
from fakes import FlakyFederation, run
from fedcopl.config import RunConfig, override
from fedcopl.deployment.audit_log import read_audit
from fedcopl.deployment.processes import request_stop
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation.assemble import assemble
from free_ports import free_port
from preloaded_processes import run_preloaded
from waiting import WAIT_LIMIT, until

pytestmark = pytest.mark.slow
BAD_SITE = Path(__file__).with_name("bad_site.py")


@pytest.fixture
def deployment(tmp_path):
    deployed = Deployment(tmp_path)
    yield deployed
    deployed.end()


def in_one_process(deployment, *words, lost=()):
    """Return the shared prompts and the client states of this federation in one process, without the `lost` replies."""
    given = ["source=folder", f"path={deployment.root / 'data'}", "partition=natural"]
    config = RunConfig.from_mapping(override({}, [*SETTINGS, *given, *words]), "test")
    simulation = assemble(config, ProgressReporter())
    federation = FlakyFederation(simulation.clients)
    federation.lost = set(lost)
    server = run(config, federation, simulation.server, lambda *_: None)
    return server.shared["visual"].tobytes(), federation.states


def visual(deployment, out="run"):
    return load_file(deployment.root / out / "prompts/server.safetensors")["visual"].tobytes()


def text(deployment, name):
    [file] = deployment.home(name).glob(f"runs/*/prompts/clients/{name}.safetensors")
    return load_file(file)["text"].tobytes()


def test_a_run_with_killed_processes_and_a_stolen_key_has_the_same_bits(deployment):
    deployment.admit(*deployment.names)
    deployment.server("rounds=4")
    for name in deployment.names:
        deployment.join(name)
    deployment.wait_for("site-b", "round 1: select replied")

    # A site is killed while it trains.
    deployment.kill("site-b")

    # A second process has a copy of a site's key, and a third process has an unknown key.
    copied = deployment.root / "stolen"
    copied.mkdir()
    shutil.copy(deployment.home("site-a") / "site.key", copied)
    deployment.join("site-a", home=str(copied), log="thief")
    stranger = deployment.join("site-c", home=str(deployment.root / "strange"), log="stranger")
    for name in ("thief", "stranger"):
        deployment.wait_for(name, "the server rejects this site")
    # A restarted server does not know which process was first: test_another_process_with_a_sites_key_is_not_accepted.
    deployment.kill("thief")

    # The site comes back.
    deployment.join("site-b")

    # The server is killed during a round, and continues.
    deployment.wait_for("site-a", "round 3: estimate replied")
    deployment.kill("server")
    deployment.server("--resume", "rounds=4")
    assert deployment.wait_for_end() == 0, deployment.all_logs()

    assert [record["dropped"] for record in deployment.rounds()] == [{}] * 4
    shared, states = in_one_process(deployment, "rounds=4")
    assert visual(deployment) == shared
    for name in deployment.names:
        assert text(deployment, name) == states[name].own["text"].tobytes()
    assert stranger.poll() is None  # still tries to connect
    assert "replied" not in deployment.log("thief") + deployment.log("stranger")
    assert json.loads((deployment.root / "run/server.json").read_text())["starts"] == 2


def test_invalid_replies_are_dropped_and_reported_and_a_flood_is_refused_before_it_is_stored(deployment):
    deployment.admit(*deployment.names)
    deployment.server("--start-with", "3", "rounds=6", "refresh_every=6", min_sites=2)
    deployment.join("site-a")
    deployment.join("site-c")
    deployment.join("site-b", program=BAD_SITE)
    refused = "refused a request of"
    until(lambda: refused in deployment.superlink_log(), deployment.all_logs)
    deployment.expire_step("6 train", "site-a", "site-c")
    assert deployment.wait_for_end() == 0, deployment.all_logs()

    # Each round another fault, among them an old valid reply; the last reply is refused by its size.
    dropped = [record["dropped"].get("site-b", "") for record in deployment.rounds()]
    for reason, words in zip(
        dropped,
        [
            "not finite",
            "instead of float32",
            "more than the limit of",
            "another request",
            "RuntimeError",
            f"no reply within {TIMEOUT} s",
        ],
        strict=True,
    ):
        assert words in reason, dropped
    assert deployment.rounds()[-1]["sites"] == ["site-a", "site-c"]
    assert not list(deployment.root.glob("*/flower/*.db*"))  # the large reply is not on the disk
    assert deployment.log("server").count("site-b not used") == 6
    # Only the site's own log has the text of the error.
    deployment.wait_for("site-b", "patient-17")
    assert "patient-17" not in deployment.log("server") + str(dropped)
    lost = {("site-b", "Train", round) for round in range(6)}
    shared, states = in_one_process(deployment, "rounds=6", "refresh_every=6", lost=lost)
    assert visual(deployment) == shared
    assert text(deployment, "site-a") == states["site-a"].own["text"].tobytes()


def test_a_round_of_secure_aggregation_that_lacks_a_site_has_no_average(deployment):
    deployment.admit(*deployment.names)
    deployment.server("--start-with", "3", "rounds=2", "secure_aggregation=true", min_sites=2)
    for name in deployment.names[:2]:
        deployment.join(name, "--min-sites", "2")
    # Killed after the other sites have sent their masked replies.
    deployment.join_with_signal("site-c", "SIGKILL 2 train", "--min-sites", "2")
    deployment.expire_step("2 train", "site-a", "site-b")
    deployment.expire_step("2 evaluate", "site-a", "site-b")
    assert deployment.wait_for_end() == 0, deployment.all_logs()

    first, second = deployment.rounds()
    assert (first["sites"], second["sites"]) == (["site-a", "site-b", "site-c"], [])
    assert second["labelling"] is None  # sites do not report their numbers of images
    assert "site-c" in second["dropped"]
    shared, states = in_one_process(deployment, "rounds=2", "secure_aggregation=true", lost={("site-c", "Train", 1)})
    assert visual(deployment) == shared
    assert text(deployment, "site-a") == states["site-a"].own["text"].tobytes()


def test_slow_late_and_disconnected_sites_and_a_full_disk(deployment):
    deployment.admit("site-a", "site-b")
    deployment.server("--start-with", "2", "rounds=4", min_sites=1)
    deployment.join_with_signal("site-c", "SIGSTOP 3 train, 4 train")
    deployment.wait_for("site-c", "the server rejects this site")
    deployment.join("site-a")
    deployment.join_with_signal("site-b", "SIGSTOP 2 train")

    # Disconnected, or too slow: the process is stopped for longer than the timeout.
    stopped = deployment.wait_until_stopped("site-b")
    # Late: a third site is admitted during the run.
    deployment.admit("site-c")
    deployment.wait_for("server", "site-c may join now")
    deployment.wait_for("site-c", "connected to")
    deployment.expire_step("2 train", "site-a")
    deployment.wait_for("server", f"site-b is left out: no reply within {TIMEOUT} s")
    os.kill(stopped, signal.SIGCONT)
    deployment.wait_for("site-b", "round 2: train replied")

    # Full: the third site temporarily cannot write.
    late = deployment.wait_until_stopped("site-c")
    resource.prlimit(late, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    os.kill(late, signal.SIGCONT)
    deployment.wait_for("server", "site-c is left out: refused: its folder is full, in use or damaged; see the site")
    resource.prlimit(late, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.kill(deployment.wait_until_stopped("site-c"), signal.SIGCONT)
    assert deployment.wait_for_end() == 0, deployment.all_logs()
    deployment.wait_for("site-c", "cannot be written: File too large")

    first, cut, full, last = deployment.rounds()
    assert first["sites"] == ["site-a", "site-b"]
    assert cut["sites"] == ["site-a"]
    assert "folder is full" in full["dropped"]["site-c"]
    assert last["sites"] == deployment.names  # both came back
    for name in deployment.names:
        assert text(deployment, name)


def test_a_site_stops_during_training(deployment):
    deployment.admit("site-a")
    deployment.server("rounds=2", "epochs=1000000", min_sites=1)
    deployment.join("site-a", "--limit", "epochs=1000000")
    deployment.wait_for("site-a", "round 1: select replied")
    assert request_stop(deployment.home("site-a"), WAIT_LIMIT)
    assert deployment.wait_for_end("site-a") == 0
    assert "stopped by `fedcopl stop`" in deployment.log("site-a")
    kinds = [line.kind for line in read_audit(deployment.home("site-a"))]
    assert kinds.count("select") == 2 and kinds.count("train") <= 1  # without a reply


def test_after_the_last_round_a_site_names_the_folder_of_its_classifier(deployment):
    deployment.admit("site-a")
    deployment.server("rounds=1", min_sites=1)
    port = free_port()
    deployment.join("site-a", "--metrics-port", str(port))
    assert deployment.wait_for_end() == 0, deployment.all_logs()
    until(lambda: "fedcopl_connected 0" in httpx.get(f"http://127.0.0.1:{port}/metrics").text, deployment.all_logs)
    deployment.wait_for("site-a", "the run is finished")
    last = deployment.log("site-a").splitlines()[-1]
    [run] = (deployment.home("site-a") / "runs").iterdir()
    assert f"this site's classifier is in {run}; label images with: fedcopl predict" in last
    command = shlex.split(re.search("fedcopl (predict .*?);", last)[1])
    command[command.index("IMAGES")] = "data/clients/site-a/train"
    assert run_preloaded(*command, cwd=deployment.root).returncode == 0
    assert len((deployment.root / "labels.csv").read_text().splitlines()) == 1 + 40
