"""The worker processes of a grid, seen from the grid.

Plain subprocesses instead of a pool: one that dies takes nobody with it, and a script that starts a grid needs no
`if __name__ == "__main__"`.
"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from queue import SimpleQueue
from tempfile import TemporaryFile
from threading import Thread

from .worker_messages import Ended, RunTask, WorkerMessage, message_from_line, task_to_line

Messages = SimpleQueue[tuple["Worker", WorkerMessage]]
START = "import sys; sys.path[:] = sys.argv[1:]; from fedcopl_experiments.worker_process import main; main()"


class Worker:
    """One process. All it says comes into the queue as (worker, message); the last message is `Ended`."""

    def __init__(self, messages: "Messages", device: str | None, *, shares_cores: bool):
        self._complaints = TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        # -P: a file in the working folder that is called like a module is not taken for it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=_environment(device, shares_cores),
            text=True,
            encoding="utf-8",
        )
        self._heard = 0  # complaints before the run that is being played
        self.device = device
        self._listener = Thread(target=self._listen, args=(messages,), daemon=True)
        self._listener.start()

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def play(self, task: RunTask) -> None:
        """Hand over a run. One that cannot take it has ended, which the queue will tell."""
        assert self._process.stdin is not None
        self._heard = os.fstat(self._complaints.fileno()).st_size
        try:
            self._process.stdin.write(task_to_line(task))
            self._process.stdin.flush()
        except OSError:
            return

    def stop(self) -> None:
        """At once: a run loses the round it is in, no more."""
        self._process.kill()
        self._listener.join()
        with suppress(OSError):
            self._process.communicate()
        self._complaints.close()

    def why_ended(self) -> str:
        """What a process that is no more can be said to have died of."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "its process was killed (SIGKILL): perhaps there was not enough memory; try fewer at once"
        cause = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        return ": ".join(["its process ended with " + cause, *self._last_complaint()])

    def _last_complaint(self) -> list[str]:
        self._complaints.seek(self._heard)
        return self._complaints.read().decode("utf-8", "replace").strip().splitlines()[-1:]

    def _listen(self, messages: "Messages") -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # a process that is killed may leave half a line
                messages.put((self, message_from_line(line)))
        self._process.wait()
        messages.put((self, Ended()))


def _environment(device: str | None, shares_cores: bool) -> dict[str, str]:
    """Of a process: which GPU it sees, and that its run has no processes of its own where other runs have the cores."""
    seen = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
    return dict(os.environ) | seen | ({"FEDCOPL_WORKERS": "1"} if shares_cores else {})


def devices() -> list[str]:
    """The GPUs of this machine that may be used, by what CUDA_VISIBLE_DEVICES calls them. Asks no torch."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip()]
    asker = shutil.which("nvidia-smi")
    if asker is None:
        return []
    question = [asker, "--query-gpu=index", "--format=csv,noheader"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):  # no driver behind it, or one that hangs
        return []
    return answer.stdout.split()
