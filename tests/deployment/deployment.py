"""A server and its sites as real processes on this machine."""

import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import IO

from deployment.toolbox import digit_sites
from fedcopl.deployment.certificates import server_certificates, site_key
from ready_processes import ReadyProcess

PATIENCE = 300.0  # seconds; these machines are shared
NO_PRIORS = ["priors.balance=false", "priors.site=false", "priors.prototypes=false"]  # dozens of exchanges fewer
SETTINGS = ["refresh_every=2", "epochs=1", "threads=1", "evaluation.every=100", *NO_PRIORS]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Deployment:
    """Everything below one folder; every process is ended at the end."""

    def __init__(self, root: Path, count: int = 3, images: int = 40):
        self.root, self.port = root, free_port()
        self.names = digit_sites(root / "data", count, images)
        self.processes: dict[str, ReadyProcess] = {}
        server_certificates(root / "federation", [])  # sites need it, whoever starts first
        (root / "federation" / "sites").mkdir()

    def admit(self, *names: str) -> None:
        for name in names:
            _, public = site_key(self.home(name), name)
            part = self.root / f"{name}.part"
            shutil.copy(public, part)
            part.rename(self.root / "federation" / "sites" / f"{name}.pub")

    def home(self, name: str) -> Path:
        return self.root / "homes" / name

    def server(self, *words: str, out: str = "run", min_sites: int = 3, timeout: float = 90) -> ReadyProcess:
        given = ["--classes", "data/classes.txt", "--host", "127.0.0.1", "--port", str(self.port), "--out", out]
        given += ["--min-sites", str(min_sites), "--timeout", str(timeout)]
        return self._start("server", ["server", *given, *SETTINGS, *words])

    def join(self, name: str, *words: str, home: str = "", log: str = "", program: Path | None = None) -> ReadyProcess:
        given = ["--server", f"127.0.0.1:{self.port}", "--ca", "federation/ca.pem", "--name", name]
        given += ["--images", f"data/clients/{name}", "--classes", "data/classes.txt"]
        given += ["--folder", home or str(self.home(name)), "model.threads=1", "--accept", "always"]
        return self._start(log or name, ["join", *given, *words], program)

    def _start(self, log: str, words: list[str], program: Path | None = None) -> ReadyProcess:
        process = ReadyProcess(words, self.root, program, FEDCOPL_CACHE=str(self.root / "cache"))
        # Written down by the test, as a terminal would: a process whose disk is full can still speak.
        threading.Thread(target=self._write_down, args=(process.stdout, log), daemon=True).start()
        self.processes[log] = process
        return process

    def _write_down(self, said: IO[bytes], log: str) -> None:
        with said, self.log_file(log).open("ab", buffering=0) as file:
            for line in said:
                file.write(line)

    def log_file(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def log(self, name: str) -> str:
        return self.log_file(name).read_text() if self.log_file(name).exists() else ""

    def wait_for(self, name: str, words: str, count: int = 1) -> None:
        """Until these words stand in a log; fails with all logs."""
        end = time.monotonic() + PATIENCE
        while self.log(name).count(words) < count:
            if time.monotonic() > end:
                raise AssertionError(f"{name} never said {words!r}:\n{self.all_logs()}")
            time.sleep(0.05)

    def wait_for_end(self, name: str = "server") -> int:
        try:
            return self.processes[name].wait(PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{name} does not end:\n{self.all_logs()}") from error

    def kill(self, name: str) -> None:
        """As a power cut would: nothing is said, nothing is tidied up."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def rounds(self, out: str = "run") -> list[dict]:
        file = self.root / out / "rounds.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def all_logs(self) -> str:
        files = [*self.root.glob("*.log"), *self.root.glob("**/flower/*.log")]
        return "\n".join(f"--- {file.relative_to(self.root)}\n{file.read_text()[-3000:]}" for file in files)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
