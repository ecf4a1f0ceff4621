"""Worker processes of a grid.

They are plain subprocesses instead of a pool: if one is killed, the others continue, and a script that starts a grid
needs no `if __name__ == "__main__"`.
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

from .worker_messages import RunTask, WorkerEnded, WorkerMessage, message_from_line, task_to_line

Messages = SimpleQueue[tuple["Worker", WorkerMessage]]
START = "import sys; sys.path[:] = sys.argv[1:]; from fedcopl_experiments.worker_process import main; main()"


class Worker:
    """One process. Its messages are put into the queue as (worker, message); the last one is `WorkerEnded`."""

    def __init__(self, messages: "Messages", device: str | None, *, shares_cores: bool):
        self._stderr = TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        # -P: a file in the working folder with the name of a module is not imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=_environment(device, shares_cores),
            text=True,
            encoding="utf-8",
        )
        self._stderr_start = 0  # length of stderr before the current run
        self.device = device
        self._listener = Thread(target=self._listen, args=(messages,), daemon=True)
        self._listener.start()

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def start(self, task: RunTask) -> None:
        """Send a run to the process. If the process has ended, `WorkerEnded` follows in the queue."""
        assert self._process.stdin is not None
        self._stderr_start = os.fstat(self._stderr.fileno()).st_size
        try:
            self._process.stdin.write(task_to_line(task))
            self._process.stdin.flush()
        except OSError:
            return

    def stop(self) -> None:
        """Kill the process; its run loses only the current round."""
        self._process.kill()
        self._listener.join()
        with suppress(OSError):
            self._process.communicate()
        self._stderr.close()

    def end_reason(self) -> str:
        """Describe how the process ended, by its exit code and its last line on stderr."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "its process was killed (SIGKILL): perhaps there was not enough memory; try fewer --jobs"
        cause = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        return ": ".join(["its process ended with " + cause, *self._last_error_line()])

    def _last_error_line(self) -> list[str]:
        self._stderr.seek(self._stderr_start)
        return self._stderr.read().decode("utf-8", "replace").strip().splitlines()[-1:]

    def _listen(self, messages: "Messages") -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # a killed process may leave an incomplete line
                messages.put((self, message_from_line(line)))
        self._process.wait()
        messages.put((self, WorkerEnded()))


def _environment(device: str | None, shares_cores: bool) -> dict[str, str]:
    """Return a worker's environment: its GPU, and no processes of its own if other runs share the cores."""
    gpu = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
    return dict(os.environ) | gpu | ({"FEDCOPL_WORKERS": "1"} if shares_cores else {})


def devices() -> list[str]:
    """Return the usable GPUs, as CUDA_VISIBLE_DEVICES names them, without importing torch."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip()]
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        return []
    command = [nvidia_smi, "--query-gpu=index", "--format=csv,noheader"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):  # no driver, or one that hangs
        return []
    return process.stdout.split()
