"""`fedcopl watch` as a person types it, in a process of its own."""

import json
import os
import signal
import subprocess
import sys

import httpx
import pytest

from free_ports import free_port
from report.sample_results import sample_results, so_far
from waiting import WAIT_LIMIT


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.toml").write_text("")
    go_on(folder, 1)
    return folder


def go_on(folder, rounds):
    (folder / "progress.json").write_text(json.dumps(so_far(sample_results(rounds=4), rounds)))


def start(tmp_path, *words):
    environment = {**os.environ, "FEDCOPL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "fedcopl", "watch", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def stop(process):
    os.kill(process.pid, signal.SIGINT)
    return process.communicate(timeout=WAIT_LIMIT)


@pytest.mark.slow
def test_an_open_page_reconnects_after_a_restart(run, tmp_path):
    port = free_port()
    first = start(tmp_path, run, "--port", port)
    address = first.stdout.readline().strip()
    with httpx.Client() as browser:
        browser.get(address)
        page = address.split("?")[0]
        assert "round 1 of 4" in browser.get(page).text
        out, err = stop(first)
        assert (first.returncode, out) == (130, "")
        assert err.splitlines() == [
            f"{run}: open this address; Ctrl-C to stop.",
            "fedcopl: stopped watching; the run is not affected",
        ]
        go_on(run, 2)
        second = start(tmp_path, run, "--port", port)
        assert second.stdout.readline().strip() == address
        assert "round 2 of 4" in browser.get(page).text  # with the cookie of the first
        stop(second)
    assert {path.name for path in run.iterdir()} == {"settings.toml", "progress.json"}


def test_no_such_folder_is_one_line(tmp_path):
    process = start(tmp_path, tmp_path / "nowhere")
    out, err = process.communicate(timeout=WAIT_LIMIT)
    assert (process.returncode, out) == (7, "")
    assert "nowhere: there is no such folder; name the folder of a started run" in err
    assert "Traceback" not in err
