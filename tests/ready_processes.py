"""Processes of the program that start at once: forked from one that has loaded torch and Flower, which takes seconds.

All else is theirs alone, as with `python -m fedcopl`: number, arguments, folder, environment, output, signals and end.
That the program also starts from nothing is seen in `tests/cli/test_run_command.py`.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

READY = multiprocessing.get_context("forkserver")
READY.set_forkserver_preload(
    [
        "fedcopl.cli",
        "fedcopl.simulation.simulate",
        "fedcopl.deployment.server.server_process",
        "fedcopl.deployment.site.site_process",
    ]
)


class ReadyProcess:
    """What the tests use of `subprocess.Popen`; `stdout` is all that it says, on both its streams."""

    def __init__(self, words: Sequence[str], cwd: Path, program: Path | None = None, **env: str):
        read, write = os.pipe()
        self._process = _started(words, cwd, program, env, (write, write))
        os.close(write)
        self.stdout: IO[bytes] = os.fdopen(read, "rb")
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def ready_run(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` gives of `python -m fedcopl WORDS`."""
    with TemporaryFile() as out, TemporaryFile() as err:
        process = _started(words, cwd or Path(), None, env, (out.fileno(), err.fileno()))
        process.join()
        said = [file.read().decode() for file in (out, err) if file.seek(0) == 0]
    return subprocess.CompletedProcess(words, process.exitcode, *said)


def _started(
    words: Sequence[str], cwd: Path, program: Path | None, env: dict[str, str], streams: tuple[int, int]
) -> BaseProcess:
    sent = [Connection(os.dup(stream), readable=False) for stream in streams]  # which can be sent to a process
    process = READY.Process(target=_run, args=(list(words), cwd.absolute(), program, env, sent))
    process.start()
    for stream in sent:
        stream.close()
    return process


def _run(words: list[str], cwd: Path, program: Path | None, env: dict[str, str], streams: list[Connection]) -> None:
    """In the new process."""
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.fsync = lambda descriptor: None  # as in conftest.py
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = [str(program or "fedcopl"), *words]
    if program:
        runpy.run_path(str(program), run_name="__main__")
    else:
        runpy.run_module("fedcopl", run_name="__main__")
