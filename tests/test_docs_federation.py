"""The commands of docs/three-sites.md are run as they are printed, on another port and without prompts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documents import page
from free_ports import free_port
from waiting import until

SITES = ("hospital", "clinic", "practice")


def blocks(port):
    """Return the shell commands of the page, without the installation."""
    text = page("docs/three-sites.md").replace("localhost:9092", f"localhost:{port}")
    text = text.replace("fedcopl server", f"fedcopl server --port {port}")
    text = text.replace("fedcopl join --server", "fedcopl join --accept always --server")
    return re.findall(r"```sh\n(.*?)```", text, re.S)[1:]


@pytest.fixture
def run_shell(tmp_path):
    """Return a function that runs commands in the folder, to their end or, with a log file, in the background."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    running = []

    def start(code, log=None):
        output = (tmp_path / log).open("w") if log else subprocess.PIPE
        process = subprocess.Popen(
            ["bash", "-e", "-c", code],
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PATH": path},
            start_new_session=True,
        )
        if log:
            running.append(process)
            return process
        printed, _ = process.communicate()
        assert process.returncode == 0, printed
        return printed

    yield start
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, 15)
            process.wait(60)


@pytest.mark.slow
def test_the_page_of_three_sites(tmp_path, run_shell):
    images, check, serve, join, status, predict, stop = blocks(free_port())
    run_shell(images)
    assert "What never leaves it: images" in run_shell(check)
    server = run_shell(serve, "server.log")
    until(lambda: (tmp_path / "federation" / "ca.pem").exists(), (tmp_path / "server.log").read_text)
    for site in SITES:
        run_shell(join.replace("site=hospital", f"site={site}"), f"{site}.log")
    until(lambda: server.poll() is not None, (tmp_path / "server.log").read_text)
    assert server.returncode == 0, (tmp_path / "server.log").read_text()
    assert all(site in run_shell(status) for site in SITES)
    until(lambda: "classifier is in" in (tmp_path / "hospital.log").read_text(), (tmp_path / "hospital.log").read_text)
    assert "digits/hospital/1.png,one," in run_shell(predict)
    assert run_shell(stop).count("stopped") == 3
