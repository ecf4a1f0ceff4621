"""Processes of the program that start at once, forked from a process that has imported torch and Flower.

The imports take seconds. Each process has its own id, arguments, folder, environment, output and signals, as with
`python -m fedcopl`. `tests/cli/test_run_command.py` tests the start of the program in a new Python process.
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

FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(
    [
        "fedcopl.cli",
        "fedcopl.simulation.simulate",
        "fedcopl.deployment.server.server_process",
        "fedcopl.deployment.site.site_process",
    ]
)


class PreloadedProcess:
    """The part of `subprocess.Popen` that the tests use; `stdout` is its stdout and stderr together."""

    def __init__(self, words: Sequence[str], cwd: Path, program: Path | None = None, **env: str):
        read, write = os.pipe()
        self._process = _start(words, cwd, program, env, (write, write))
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


def run_preloaded(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m fedcopl WORDS` to its end, as `subprocess.run` with captured output does."""
    with TemporaryFile() as out, TemporaryFile() as err:
        process = _start(words, cwd or Path(), None, env, (out.fileno(), err.fileno()))
        process.join()
        printed = [file.read().decode() for file in (out, err) if file.seek(0) == 0]
    return subprocess.CompletedProcess(words, process.exitcode, *printed)


def _start(
    words: Sequence[str], cwd: Path, program: Path | None, env: dict[str, str], streams: tuple[int, int]
) -> BaseProcess:
    sent = [Connection(os.dup(stream), readable=False) for stream in streams]  # a Connection can be pickled
    process = FORK_SERVER.Process(target=_run, args=(list(words), cwd.absolute(), program, env, sent))
    process.start()
    for stream in sent:
        stream.close()
    return process


def _run(words: list[str], cwd: Path, program: Path | None, env: dict[str, str], streams: list[Connection]) -> None:
    """Run the program in the new process, with `streams` as its stdout and stderr."""
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
