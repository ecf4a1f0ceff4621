"""What many sites cost one server: seconds and memory of a round, and what it costs when nobody asks.

    python tools/many_sites.py round --sites 10              answers made up: the exchange without any work
    python tools/many_sites.py round --sites 50 --real       whole sites, with a model and a few digits each
    python tools/many_sites.py idle --sites 10               sites that wait, after a minute
    python tools/many_sites.py round --trees OLD NEW         two checkouts by turns, three times each

Server and SuperLink are real processes, and so are the sites: one each, forked from this one, which has all loaded.
CPU and memory are the kernel's own numbers (/proc), of which CPU does not depend on what else the machine does.
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
ROUNDS, TURNS = 4, 3
TICKS = os.sysconf("SC_CLK_TCK")
SETTINGS = [f"rounds={ROUNDS}", "epochs=1", "threads=1"]
# Four questions to everybody in each round, as many as a round without priors and secure aggregation can have.
NO_PRIORS = ["refresh_every=1", "priors.logit_bias=false", "priors.label_shift=false", "priors.prototypes=false"]
SETTLED = 60.0  # seconds after which a site that nobody asks looks for questions most seldom


@dataclass
class Cost:
    """What was measured."""

    sites: int
    seconds: float = 0.0  # of a round, the median
    link_cpu: float = 0.0  # seconds of the SuperLink in a round; idle: a core's share for each site
    server_cpu: float = 0.0
    site_cpu: float = 0.0  # of all sites; idle: of one
    link_memory: float = 0.0  # PSS, MB
    server_memory: float = 0.0
    site_memory: float = 0.0  # of one site
    lost: int = 0  # sites missing in a round, over all rounds
    joining: float = 0.0  # seconds from the first site's start until all are connected
    first: float = 0.0  # seconds of the first round, which learns the priors if there are any
    away: int = 0  # times that the server said that a site is not connected or left out
    sites_memory: float = 0.0  # of all sites together
    load: float = 0.0  # of the machine, over the last minute: what the seconds by the wall are worth


class MadeUp:
    """A site that answers at once, whatever it is asked; in all else `fedcopl join`."""

    def __init__(self, name: str, folder: Path):
        from fedcopl.deployment.site.policies import Limits

        self.name, self.folder_name = name, name
        self.home = SimpleNamespace(folder=folder, limits=Limits())

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


def serve_made_up(name: str, root: Path, address: str) -> None:
    """Until killed: the loop of `fedcopl join` around made-up answers."""
    from fedcopl.deployment.flower_internals.site_connection import site_connection
    from fedcopl.deployment.keys import private_key
    from fedcopl.deployment.site.site_process import ServerAddress, SiteReporter, _handle_requests
    from fedcopl.run.progress_reporter import ProgressReporter

    ca, site = root / "federation/ca.pem", MadeUp(name, root / name)
    news = SiteReporter(ProgressReporter(), ServerAddress(address, ca))
    while True:
        try:
            with site_connection(address, ca, private_key(root / name / "site.key")) as connection:
                _handle_requests(site, connection, news)
        except Exception:
            time.sleep(1.0)


def serve_real(name: str, root: Path, address: str) -> None:
    """`fedcopl join`, with a few digits of its own."""
    from fedcopl.deployment.site.running_site import RunningSite, SiteHome
    from fedcopl.deployment.site.site_process import ServerAddress, run_site
    from fedcopl.run.progress_reporter import ProgressReporter

    os.environ["FEDCOPL_CACHE"] = str(root / "cache" / name)
    home = SiteHome(name, root / "images" / name, str(root / "classes.txt"), root / name, {"threads": 1})
    run_site(RunningSite(home), ServerAddress(address, root / "federation/ca.pem"), ProgressReporter())


@contextmanager
def federation(count: int, real: bool, wait_for: int, priors: bool) -> Iterator[tuple[Path, int, list[int], float]]:
    """A server and so many sites: the folder, the server's process and the sites', and when the first was started."""
    with tempfile.TemporaryDirectory() as folder:
        root, names = Path(folder), [f"site-{number:03}" for number in range(count)]
        port = prepare(root, names, real)
        words = ["--host", "127.0.0.1", "--port", port, "--out", "run", "--start-with", str(wait_for)]
        words += ["--min-sites", str(count), "--timeout", "3000", "--classes", "classes.txt"]
        server = start(root, "server", *words, *SETTINGS, *([] if priors else NO_PRIORS))
        await_port(int(port))
        address, began = f"127.0.0.1:{port}", time.monotonic()
        sites = [fork(name, root, address, serve_real if real else serve_made_up) for name in names]
        try:
            yield root, server.pid, sites, began
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
            draw(digits.train.images, range(20 * number, 20 * number + 20), root / "images" / name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def draw(images, numbers, folder: Path) -> None:  # type: ignore[no-untyped-def]
    folder.mkdir(parents=True)
    for number in numbers:
        images[number].save(folder / f"{number}.png")


def start(root: Path, *words: str) -> subprocess.Popen[bytes]:
    with (root / f"{words[0]}.log").open("ab") as log:
        command = [sys.executable, "-m", "fedcopl", *words]
        return subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def fork(name: str, root: Path, address: str, serve: Serve) -> int:
    """What is loaded is loaded once: a machine with fifty sites has no time for fifty times torch."""
    importlib.import_module("fedcopl.deployment.site.site_process")
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    serve(name, root, address)
    os._exit(0)


def await_port(port: int) -> None:
    for _ in range(1200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("the server did not start")


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int) -> float:
    """PSS in MB: what is shared counts once."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def superlink_of(server: int) -> int:
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return next(int(pid) for pid in children if "superlink" in Path(f"/proc/{pid}/cmdline").read_text())


def rounds_of(root: Path) -> list[dict]:  # type: ignore[type-arg]
    file = root / "run/rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def cost_of_rounds(count: int, real: bool, priors: bool) -> Cost:
    """Of those in the middle: in the first sites may still be connecting, and after the last all ends."""
    with federation(count, real, count, priors) as (root, server, sites, began):
        joining = await_all(root, server, count) - began
        first = await_round(root, server, 1)
        link = superlink_of(server)
        before = [cpu(link), cpu(server), sum(map(cpu, sites))]
        records = await_round(root, server, ROUNDS - 1)
        after = [cpu(link), cpu(server), sum(map(cpu, sites))]
        used = [(b - a) / (len(records) - len(first)) for a, b in zip(before, after, strict=True)]
        took = [b["seconds"] - a["seconds"] for a, b in pairwise(records)]
        lost = sum(count - record["participants"] for record in records)
        of_sites = [memory(site) for site in sites]
        sizes = memory(link), memory(server), statistics.median(of_sites)
        more = joining, first[0]["seconds"], troubles(root), sum(of_sites), os.getloadavg()[0]
        return Cost(count, statistics.median(took), *used, *sizes, lost, *more)


def await_all(root: Path, server: int, count: int) -> float:
    """When all sites are connected, by the clock that does not jump."""
    while f"{count} clients" not in (root / "server.log").read_text():
        os.kill(server, 0)
        time.sleep(0.05)
    return time.monotonic()


def troubles(root: Path) -> int:
    lines = (root / "server.log").read_text().splitlines()
    return sum("is not connected" in line or "is left out" in line for line in lines)


def await_round(root: Path, server: int, number: int) -> list[dict]:  # type: ignore[type-arg]
    """The records of the rounds so far, as soon as there are so many."""
    while len(records := rounds_of(root)) < number:
        os.kill(server, 0)  # it is still there
        time.sleep(0.05)
    return records


def cost_of_waiting(count: int, real: bool, seconds: float) -> Cost:
    """Of sites that wait for one that never comes."""
    with federation(count, real, count + 1, False) as (_, server, sites, _began):
        time.sleep(SETTLED + (2.0 * count if real else 0.0))
        link = superlink_of(server)
        before = cpu(link), sum(map(cpu, sites))
        time.sleep(seconds)
        share = 100 / seconds / count
        now = (cpu(link) - before[0]) * share, (sum(map(cpu, sites)) - before[1]) * share
        return Cost(
            count, seconds, now[0], 0.0, now[1], memory(link), memory(server), statistics.median(map(memory, sites))
        )


def by_turns(trees: Sequence[str], words: Sequence[str]) -> None:
    for _ in range(TURNS):
        for tree in trees:
            environment = os.environ | {"PYTHONPATH": f"{tree}/src"}
            subprocess.run([sys.executable, __file__, *words], env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["round", "idle"])
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--priors", action="store_true", help="as by default: the first round learns them")
    parser.add_argument("--seconds", type=float, default=40.0, help="of waiting, for `idle`")
    parser.add_argument("--trees", nargs="+")
    given = parser.parse_args()
    if given.trees:
        real = ["--real"] * given.real
        by_turns(given.trees, [given.what, "--sites", str(given.sites), "--seconds", str(given.seconds), *real])
        return
    if given.what == "round":
        cost = cost_of_rounds(given.sites, given.real, given.priors)
    else:
        cost = cost_of_waiting(given.sites, given.real, given.seconds)
    import fedcopl

    where = Path(fedcopl.__file__).parents[2].name
    print(where, json.dumps({key: round(value, 2) for key, value in asdict(cost).items()}), flush=True)


if __name__ == "__main__":
    main()
