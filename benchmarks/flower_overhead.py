"""What Flower costs: seconds of a round and bytes of a round, for two real sites on this machine."""

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

from .measure import Line, by_turns, counted, summary

SITES = ("site-a", "site-b")
IMAGES = 24
TURNS = 3
MINUTE = 60.0  # of training at the sites, which a round of a real model takes and more
# 110 prompt vectors of this small model are as many bytes as FedCoPL's visual prompts of a ViT-B/32.
SETTINGS = ["rounds=4", "refresh_every=4", "epochs=1", "threads=1", "visual_prompts=110", "evaluation.every=4"]


def flower_overhead() -> Iterator[Line]:
    last: list[Outcome] = []

    def apart() -> float:
        with tempfile.TemporaryDirectory() as name:
            _draw(Path(name))
            last[:] = [_deployed(Path(name))]
        return _seconds_a_round(last[0])

    def alone() -> float:
        with tempfile.TemporaryDirectory() as name:
            _draw(Path(name))
            return _seconds_a_round(_in_one_process(Path(name)))

    measured = by_turns(alone, apart, TURNS)
    less, more = measured.medians
    ratio = measured.why_not or summary([(MINUTE + max(b - a, 0.0)) / MINUTE for a, b in measured.pairs])
    detail = f"{more:.1f} s a round against {less:.1f} s, one question each"
    yield Line("flower-time", "round of a minute's training, 2 sites", "one process", ratio, 1.1, True, detail)
    deployed = last[0]
    payload, wire = deployed.bytes_up + deployed.bytes_down, sum((deployed.traffic or {}).values())
    detail = f"{wire / 1e3:.0f} kB for {payload / 1e3:.0f} kB of numbers in {len(deployed.rounds)} rounds"
    what = "bytes on the wire, prompts of a ViT-B/32"
    yield Line("flower-bytes", what, "the numbers alone", counted(wire / payload), 1.1, True, detail)


def _draw(root: Path) -> None:
    (root / "classes.txt").write_text("one\ntwo\n")
    random = np.random.default_rng(0)
    for site in SITES:
        (root / "data/clients" / site).mkdir(parents=True)
        for number in range(IMAGES):
            pixels = random.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(root / "data/clients" / site / f"{number}.png")


def _in_one_process(root: Path) -> Outcome:
    given = ["source=folder", f"path={root / 'data'}", f"classes_file={root / 'classes.txt'}", "partition=natural"]
    return simulate(RunConfig.from_mapping(override({}, [*SETTINGS, *given]), "benchmark"), root / "alone")


def _seconds_a_round(run: Outcome) -> float:
    """Of those in the middle: only training, nothing is labelled and nothing evaluated."""
    return (run.rounds[-2].seconds - run.rounds[0].seconds) / (len(run.rounds) - 2)


def _deployed(root: Path) -> Outcome:
    server_certificates(root / "federation", [])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    (root / "federation/sites").mkdir()
    for site in SITES:
        (root / f"federation/sites/{site}.pub").write_bytes(site_key(root / site, site)[1].read_bytes())
    own = ["--host", "127.0.0.1", "--port", port, "--out", "run", "--json"]
    server = _start(root, "server", "--classes", "classes.txt", *own, *SETTINGS)
    joined = [_start(root, "join", *_site(site, port)) for site in SITES]
    try:
        outcome = read_outcome(json.loads(server.communicate()[0]))
    finally:
        for process in joined:
            process.terminate()
            process.wait()
        time.sleep(0.5)  # their children see it and end
    return outcome


def _site(site: str, port: str) -> list[str]:
    given = ["--server", f"127.0.0.1:{port}", "--ca", "federation/ca.pem", "--name", site, "--folder", site]
    return [*given, "--images", f"data/clients/{site}", "--classes", "classes.txt", "model.threads=1"]


def _start(root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedcopl", *words],
        cwd=root,
        stdout=subprocess.PIPE if words[0] == "server" else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"FEDCOPL_CACHE": str(root / "cache")},
    )
