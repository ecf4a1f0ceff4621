"""Measure the cost of many sites for one server: time and memory of a round, and the cost of idle sites.

    python tools/many_sites.py round --sites 10              constant replies: the exchange without computation
    python tools/many_sites.py round --sites 50 --real       complete sites, with a model and a few digits each
    python tools/many_sites.py idle --sites 10               sites that wait for a run

Server, SuperLink and sites are separate processes. The sites are forked from this process, which has imported the
program. CPU time and memory are read from /proc; CPU time hardly depends on other processes of the machine.
"""

import argparse
import importlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

Serve = Callable[[str, Path, str], None]
ROUNDS = 4
TICKS = os.sysconf("SC_CLK_TCK")
SETTINGS = [f"rounds={ROUNDS}", "epochs=1", "threads=1"]
# Four requests to all sites in each round, the most without priors and secure aggregation.
NO_PRIORS = ["refresh_every=1", "priors.logit_bias=false", "priors.label_shift=false", "priors.prototypes=false"]
IDLE_AFTER = 60.0  # seconds until a site polls the server at the lowest rate


@dataclass
class Cost:
    """The measurements of a run."""

    sites: int
    seconds: float = 0.0  # of a round, the median
    link_cpu: float = 0.0  # CPU seconds of the SuperLink in a round; idle: % of a core for each site
    server_cpu: float = 0.0
    site_cpu: float = 0.0  # CPU seconds of all sites in a round; idle: % of a core for each site
    link_memory: float = 0.0  # PSS, MB
    server_memory: float = 0.0
    site_memory: float = 0.0  # of one site
    lost: int = 0  # sites missing in a round, over all rounds
    joining: float = 0.0  # seconds from the first site's start until all are connected
    first: float = 0.0  # seconds of the first round, which estimates the priors with --priors
    away: int = 0  # messages of the server that a site is not connected or left out
    sites_memory: float = 0.0  # of all sites together
    load: float = 0.0  # load average of the last minute; with a high one the wall times are too long


class ConstantSite:
    """A site with constant replies; otherwise as in `fedcopl join`."""

    def __init__(self, name: str, folder: Path):
        from fedcopl.deployment.site.policies import Limits

        self.name, self.folder_name = name, name
        self.options = SimpleNamespace(folder=folder, limits=Limits())

    def handle(self, request, terms):  # type: ignore[no-untyped-def]
        import numpy as np

        from fedcopl.messages import Estimate, Estimated, Evaluated, Select, Selected, Train, Trained

        match request:
            case Estimate():
                return Estimated(np.full(10, 5))
            case Select():
                return Selected(40, 50, None)
            case Train():
                return Trained(request.shared, 40, 0.5, checks=(0.0,) * 6)
        return Evaluated(0, 0)


def serve_constant_replies(name: str, root: Path, address: str) -> None:
    """Run the loop of `fedcopl join` with constant replies until the process is killed."""
    from fedcopl.deployment.flower_internals.site_connection import site_connection
    from fedcopl.deployment.keys import private_key
    from fedcopl.deployment.site.site_process import ServerAddress, SiteReporter, _handle_requests
    from fedcopl.run.progress_reporter import ProgressReporter

    ca, site = root / "federation/ca.pem", ConstantSite(name, root / name)
    reporter = SiteReporter(ProgressReporter(), ServerAddress(address, ca))
    while True:
        try:
            with site_connection(address, ca, private_key(root / name / "site.key")) as connection:
                _handle_requests(site, connection, reporter)
        except Exception:
            time.sleep(1.0)


def serve_real(name: str, root: Path, address: str) -> None:
    """Run `fedcopl join` with 20 digits."""
    from fedcopl.deployment.site.running_site import RunningSite, SiteOptions
    from fedcopl.deployment.site.site_process import ServerAddress, run_site
    from fedcopl.run.progress_reporter import ProgressReporter

    os.environ["FEDCOPL_CACHE"] = str(root / "cache" / name)
    options = SiteOptions(name, root / "images" / name, str(root / "classes.txt"), root / name, {"threads": 1})
    run_site(RunningSite(options), ServerAddress(address, root / "federation/ca.pem"), ProgressReporter())


@contextmanager
def federation(count: int, real: bool, wait_for: int, priors: bool) -> Iterator[tuple[Path, int, list[int], float]]:
    """Start a server and its sites; yield folder, process ids of server and sites, and the start time of the sites."""
    with tempfile.TemporaryDirectory() as folder:
        root, names = Path(folder), [f"site-{number:03}" for number in range(count)]
        port = prepare(root, names, real)
        words = ["--host", "127.0.0.1", "--port", port, "--out", "run", "--start-with", str(wait_for)]
        words += ["--min-sites", str(count), "--timeout", "3000", "--classes", "classes.txt"]
        server = start(root, "server", *words, *SETTINGS, *([] if priors else NO_PRIORS))
        wait_for_port(int(port))
        address, start_time = f"127.0.0.1:{port}", time.monotonic()
        sites = [fork(name, root, address, serve_real if real else serve_constant_replies) for name in names]
        try:
            yield root, server.pid, sites, start_time
        finally:
            for pid in (*sites, server.pid):
                try:
                    os.kill(pid, signal.SIGTERM)
                except ProcessLookupError:
                    continue
            server.wait()


def prepare(root: Path, names: Sequence[str], real: bool) -> str:
    from fedcopl.data.catalog import load_digits
    from fedcopl.deployment.keys import server_certificates, site_key

    digits = load_digits()
    (root / "classes.txt").write_text("\n".join(digits.classes) + "\n")
    server_certificates(root / "federation", [])
    (root / "federation/sites").mkdir()
    for number, name in enumerate(names):
        (root / f"federation/sites/{name}.pub").write_bytes(site_key(root / name, name)[1].read_bytes())
        if real:
            folder = root / "images" / name
            folder.mkdir(parents=True)
            for image in range(20 * number, 20 * number + 20):
                digits.train.images[image].save(folder / f"{image}.png")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(root: Path, *words: str) -> subprocess.Popen[bytes]:
    with (root / f"{words[0]}.log").open("ab") as log:
        command = [sys.executable, "-m", "fedcopl", *words]
        return subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def fork(name: str, root: Path, address: str, serve: Serve) -> int:
    """Fork a site from this process, so that its modules are imported once; return its process id."""
    importlib.import_module("fedcopl.deployment.site.site_process")
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    serve(name, root, address)
    os._exit(0)


def wait_for_port(port: int) -> None:
    for _ in range(1200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("the server did not start")


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int) -> float:
    """Return the proportional set size of a process in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def superlink_of(server: int) -> int:
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return next(int(pid) for pid in children if "superlink" in Path(f"/proc/{pid}/cmdline").read_text())


def rounds_of(root: Path) -> list[dict]:  # type: ignore[type-arg]
    file = root / "run/rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def cost_of_rounds(count: int, real: bool, priors: bool) -> Cost:
    """Measure the rounds between the first and the last, while all sites are connected."""
    with federation(count, real, count, priors) as (root, server, sites, start_time):
        joining = wait_until_connected(root, server, count) - start_time
        first = wait_for_round(root, server, 1)
        link = superlink_of(server)
        before = [cpu(link), cpu(server), sum(map(cpu, sites))]
        records = wait_for_round(root, server, ROUNDS - 1)
        after = [cpu(link), cpu(server), sum(map(cpu, sites))]
        used = [(b - a) / (len(records) - len(first)) for a, b in zip(before, after, strict=True)]
        seconds = [b["seconds"] - a["seconds"] for a, b in pairwise(records)]
        lost = sum(count - record["participants"] for record in records)
        site_memory = [memory(site) for site in sites]
        sizes = memory(link), memory(server), statistics.median(site_memory)
        others = joining, first[0]["seconds"], disconnections(root), sum(site_memory), os.getloadavg()[0]
        return Cost(count, statistics.median(seconds), *used, *sizes, lost, *others)


def wait_until_connected(root: Path, server: int, count: int) -> float:
    """Wait until all sites are connected; return the time of the monotonic clock."""
    while f"{count} clients" not in (root / "server.log").read_text():
        os.kill(server, 0)
        time.sleep(0.05)
    return time.monotonic()


def disconnections(root: Path) -> int:
    lines = (root / "server.log").read_text().splitlines()
    return sum("is not connected" in line or "is left out" in line for line in lines)


def wait_for_round(root: Path, server: int, number: int) -> list[dict]:  # type: ignore[type-arg]
    """Wait until this number of rounds is finished; return their records."""
    while len(records := rounds_of(root)) < number:
        os.kill(server, 0)  # fails if the server has ended
        time.sleep(0.05)
    return records


def cost_of_waiting(count: int, real: bool, seconds: float) -> Cost:
    """Measure sites that wait because the server waits for one more site."""
    with federation(count, real, count + 1, False) as (_, server, sites, _start_time):
        time.sleep(IDLE_AFTER + (2.0 * count if real else 0.0))
        link = superlink_of(server)
        before = cpu(link), sum(map(cpu, sites))
        time.sleep(seconds)
        share = 100 / seconds / count
        link_cpu, site_cpu = (cpu(link) - before[0]) * share, (sum(map(cpu, sites)) - before[1]) * share
        sizes = memory(link), memory(server), statistics.median(map(memory, sites))
        return Cost(count, seconds, link_cpu, 0.0, site_cpu, *sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measure", choices=["round", "idle"])
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--priors", action="store_true", help="estimate the priors in the first round, as by default")
    parser.add_argument("--seconds", type=float, default=40.0, help="duration of the measurement, for `idle`")
    given = parser.parse_args()
    if given.measure == "round":
        cost = cost_of_rounds(given.sites, given.real, given.priors)
    else:
        cost = cost_of_waiting(given.sites, given.real, given.seconds)
    print(json.dumps({key: round(value, 2) for key, value in asdict(cost).items()}), flush=True)


if __name__ == "__main__":
    main()
