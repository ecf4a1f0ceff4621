"""A server and its sites as real processes on this machine."""

import json
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO

from deployment.toolbox import digit_sites
from fedcopl.deployment.keys import server_certificates, site_key
from free_ports import free_port
from preloaded_processes import PreloadedProcess
from waiting import WAIT_LIMIT, until

TIMEOUT = 1800  # seconds for a reply; `Deployment.expire_step` moves the server's clock beyond it
SERVER_WITH_CLOCK = Path(__file__).with_name("server_with_clock.py")
SIGNALLING_SITE = Path(__file__).with_name("signalling_site.py")
# Without priors a run has dozens of exchanges fewer.
NO_PRIORS = ["priors.logit_bias=false", "priors.label_shift=false", "priors.prototypes=false"]
SETTINGS = ["refresh_every=2", "epochs=1", "threads=1", "evaluation.every=100", *NO_PRIORS]


class Deployment:
    """A server and its sites below one folder; `end` ends all processes."""

    def __init__(self, root: Path, count: int = 3, images: int = 40):
        self.root, self.port = root, free_port()
        self.names = digit_sites(root / "data", count, images)
        self.processes: dict[str, PreloadedProcess] = {}
        self.writers: dict[str, threading.Thread] = {}
        server_certificates(root / "federation", [])  # sites need ca.pem even if they start before the server
        (root / "federation" / "sites").mkdir()

    def admit(self, *names: str) -> None:
        for name in names:
            _, public = site_key(self.home(name), name)
            part = self.root / f"{name}.part"
            shutil.copy(public, part)
            part.rename(self.root / "federation" / "sites" / f"{name}.pub")

    def home(self, name: str) -> Path:
        return self.root / "folders" / name

    def server(self, *words: str, out: str = "run", min_sites: int = 3) -> PreloadedProcess:
        given = ["--classes", "data/classes.txt", "--host", "127.0.0.1", "--port", str(self.port), "--out", out]
        given += ["--min-sites", str(min_sites), "--timeout", str(TIMEOUT)]
        return self._start("server", ["server", *given, *SETTINGS, *words], SERVER_WITH_CLOCK)

    def expire_step(self, step: str, *names: str) -> None:
        """Wait until the server has accepted the replies of these sites to `ROUND KIND`, then exceed its timeout."""
        until(
            lambda: set(names) <= self._sites_accepted_at(step),
            lambda: f"{names} never replied to {step}:\n{self.all_logs()}",
        )
        with (self.root / "hours").open("a") as hours:
            hours.write("+")

    def _sites_accepted_at(self, step: str) -> set[str]:
        """Return the sites whose replies to `ROUND KIND` the server has accepted."""
        files = self.root.glob("run/audit.jsonl")
        lines = [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]
        return {
            line["peer"] for line in lines if f"{line['round']} {line['kind']} {line['decision']}" == f"{step} accepted"
        }

    def join(
        self, name: str, *words: str, home: str = "", log: str = "", program: Path | None = None
    ) -> PreloadedProcess:
        return self._start(log or name, self._join_arguments(name, *words, home=home), program)

    def join_with_signal(self, name: str, signal_at: str, *words: str) -> PreloadedProcess:
        """Start a site that sends itself a signal at a request: `SIGKILL 2 train`."""
        return self._start(name, self._join_arguments(name, *words), SIGNALLING_SITE, SIGNAL_AT=signal_at)

    def _join_arguments(self, name: str, *words: str, home: str = "") -> list[str]:
        given = ["--server", f"127.0.0.1:{self.port}", "--ca", "federation/ca.pem", "--name", name]
        given += ["--images", f"data/clients/{name}", "--classes", "data/classes.txt"]
        given += ["--folder", home or str(self.home(name)), "model.threads=1", "--accept", "always"]
        return ["join", *given, *words]

    def _start(self, log: str, words: list[str], program: Path | None = None, **env: str) -> PreloadedProcess:
        process = PreloadedProcess(words, self.root, program, FEDCOPL_CACHE=str(self.root / "cache"), **env)
        # The test writes the log, as a terminal would: a process whose disk is full can still print.
        self.writers[log] = threading.Thread(target=self._write_log, args=(process.stdout, log), daemon=True)
        self.writers[log].start()
        self.processes[log] = process
        return process

    def _write_log(self, output: IO[bytes], log: str) -> None:
        with output, self.log_file(log).open("ab", buffering=0) as file:
            for line in output:
                file.write(line)

    def log_file(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def log(self, name: str) -> str:
        return self.log_file(name).read_text() if self.log_file(name).exists() else ""

    def wait_for(self, name: str, text: str) -> None:
        """Wait until a log contains this text; fails with all logs."""
        until(lambda: text in self.log(name), lambda: f"{name} never printed {text!r}:\n{self.all_logs()}")

    def wait_until_stopped(self, name: str) -> int:
        """Wait until a process has stopped itself with SIGSTOP, and return its id."""
        state = Path(f"/proc/{self.processes[name].pid}/stat")
        until(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "T", self.all_logs)
        return self.processes[name].pid

    def wait_for_end(self, name: str = "server") -> int:
        """Wait until a process has ended and its output is in its log; return its exit code."""
        try:
            code = self.processes[name].wait(WAIT_LIMIT)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{name} does not end:\n{self.all_logs()}") from error
        self.writers[name].join(WAIT_LIMIT)
        return code

    def kill(self, name: str) -> None:
        """Kill a process without giving it time to clean up."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def rounds(self, out: str = "run") -> list[dict]:
        file = self.root / out / "rounds.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def superlink_log(self) -> str:
        return "".join(file.read_text() for file in self.root.glob("*/flower/superlink.log"))

    def all_logs(self) -> str:
        files = [*self.root.glob("*.log"), *self.root.glob("*/flower/*.log")]
        return "\n".join(f"--- {file.relative_to(self.root)}\n{file.read_text()[-3000:]}" for file in files)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
