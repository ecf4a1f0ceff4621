"""The same work on many images, on all cores, with bounded memory.

Threads, not processes: reading, hashing, decoding and resizing all leave Python's lock, and threads need no guard in
a user's script, no second start of the interpreter and no copying of pixels.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
AHEAD = 4  # results per thread that may wait to be taken: bounds the memory


def workers() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int | None:
    """Bytes that can be had without swapping, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def in_order(work: Callable[[int], T], count: int) -> Iterator[T]:
    """work(0), work(1), ... done at once, handed over one after the other."""
    threads = workers()
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for number in range(count):
                waiting.append(pool.submit(work, number))
                if len(waiting) > AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
