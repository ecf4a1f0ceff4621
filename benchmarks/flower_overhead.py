"""Overhead of Flower: seconds and bytes of a round, with two sites as processes on this machine."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from fedcopl.config import RunConfig, override
from fedcopl.deployment.keys import server_certificates, site_key
from fedcopl.run.record import Outcome, read_outcome
from fedcopl.simulation.simulate import simulate

from .measure import Line, counted, measure_alternately, summary

SITES = ("site-a", "site-b")
IMAGES = 24
TURNS = 3
MINUTE = 60.0  # seconds; a round with a real model takes at least this long
# 110 prompt vectors of the built-in model have as many bytes as the visual prompts of a ViT-B/32.
SETTINGS = ["rounds=4", "refresh_every=4", "epochs=1", "threads=1", "visual_prompts=110", "evaluation.every=4"]


def flower_overhead() -> Iterator[Line]:
    last: list[Outcome] = []

    def deployment() -> float:
        with tempfile.TemporaryDirectory() as name:
            _write_images(Path(name))
            last[:] = [_deploy(Path(name))]
        return _seconds_per_round(last[0])

    def simulation() -> float:
        with tempfile.TemporaryDirectory() as name:
            _write_images(Path(name))
            return _seconds_per_round(_simulate(Path(name)))

    measured = measure_alternately(simulation, deployment, TURNS)
    simulated, with_flower = measured.medians
    ratio = measured.failure or summary([(MINUTE + max(b - a, 0.0)) / MINUTE for a, b in measured.pairs])
    detail = f"{with_flower:.1f} s a round against {simulated:.1f} s, one request each"
    yield Line("flower-time", "round of a minute's training, 2 sites", "one process", ratio, 1.1, True, detail)
    deployed = last[0]
    payload, wire = deployed.bytes_up + deployed.bytes_down, sum((deployed.traffic or {}).values())
    detail = f"{wire / 1e3:.0f} kB for {payload / 1e3:.0f} kB of numbers in {len(deployed.rounds)} rounds"
    what = "bytes on the wire, prompts of a ViT-B/32"
    yield Line("flower-bytes", what, "the numbers alone", counted(wire / payload), 1.1, True, detail)


def _write_images(root: Path) -> None:
    (root / "classes.txt").write_text("one\ntwo\n")
    random = np.random.default_rng(0)
    for site in SITES:
        (root / "data/clients" / site).mkdir(parents=True)
        for number in range(IMAGES):
            pixels = random.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(root / "data/clients" / site / f"{number}.png")


def _simulate(root: Path) -> Outcome:
    data = ["source=folder", f"path={root / 'data'}", f"classes_file={root / 'classes.txt'}", "partition=natural"]
    return simulate(RunConfig.from_mapping(override({}, [*SETTINGS, *data]), "benchmark"), root / "alone")


def _seconds_per_round(run: Outcome) -> float:
    """Return the mean over the rounds that only train, without the first and the last."""
    return (run.rounds[-2].seconds - run.rounds[0].seconds) / (len(run.rounds) - 2)


def _deploy(root: Path) -> Outcome:
    server_certificates(root / "federation", [])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    (root / "federation/sites").mkdir()
    for site in SITES:
        (root / f"federation/sites/{site}.pub").write_bytes(site_key(root / site, site)[1].read_bytes())
    options = ["--host", "127.0.0.1", "--port", port, "--out", "run", "--json"]
    server = _start(root, "server", "--classes", "classes.txt", *options, *SETTINGS)
    sites = [_start(root, "join", *_site(site, port)) for site in SITES]
    try:
        outcome = read_outcome(json.loads(server.communicate()[0]))
    finally:
        for process in sites:
            process.terminate()
            process.wait()
        time.sleep(0.5)  # until their child processes have ended
    return outcome


def _site(site: str, port: str) -> list[str]:
    options = ["--server", f"127.0.0.1:{port}", "--ca", "federation/ca.pem", "--name", site, "--folder", site]
    return [*options, "--images", f"data/clients/{site}", "--classes", "classes.txt", "model.threads=1"]


def _start(root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedcopl", *words],
        cwd=root,
        stdout=subprocess.PIPE if words[0] == "server" else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"FEDCOPL_CACHE": str(root / "cache")},
    )
