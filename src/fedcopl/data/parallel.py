"""A parallel map over many images with bounded memory.

It uses threads: reading, hashing, decoding and resizing release the GIL, and results need not be copied.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
_PENDING_PER_THREAD = 4  # calls submitted ahead, which bounds the memory


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int | None:
    """Return the bytes available without swapping; None if the system does not report them."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def parallel_map(work: Callable[[int], _T], count: int) -> Iterator[_T]:
    """Yield work(0), work(1), ..., work(count - 1) in this order, computed in parallel."""
    threads = available_cores()
    futures: deque[Future[_T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for number in range(count):
                futures.append(pool.submit(work, number))
                if len(futures) > _PENDING_PER_THREAD * threads:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()
