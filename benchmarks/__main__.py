"""`make bench`: the table of what was measured, and the same as JSON.

python -m benchmarks [NAME ...] [--json FILE]
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from fedcopl.clip.device import keep_freed_memory

from .against_transformers import against_transformers
from .flower_overhead import flower_overhead
from .frozen_images import frozen_images
from .measure import Line, matmul_peak
from .simulated_clients import simulated_clients
from .training_step import training_step

BENCHMARKS: dict[str, Callable[[], Iterator[Line]]] = {
    "training_step": training_step,
    "against_transformers": against_transformers,
    "frozen_images": frozen_images,
    "simulated_clients": simulated_clients,
    "flower_overhead": flower_overhead,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where to write the JSON")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))} (known: {', '.join(BENCHMARKS)})")
    keep_freed_memory()  # as every run does
    peak = matmul_peak(3200, 768, 3072)
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, matrix product {peak / 1e9:.0f} GFLOP/s")
    print(f"{'what':<48}{'against':<18}{'ratio':>7}{'reach':>9}   detail")
    lines = [line for name in arguments.names or BENCHMARKS for line in _told(BENCHMARKS[name])]
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__, "matmul_flops": peak}
    arguments.json.write_text(json.dumps({"machine": machine, "lines": [asdict(line) for line in lines]}, indent=1))


def _told(benchmark: Callable[[], Iterator[Line]]) -> Iterator[Line]:
    """Print each line as soon as it is measured."""
    for line in benchmark():
        reach = f"{'<=' if line.at_most else '>='} {line.reach}"
        mark = "" if line.reached else "  NOT REACHED"
        print(
            f"{line.what:<48}{line.against:<18}{line.ratio:>6.2f}x{reach:>9}   {line.detail}{mark}",
            flush=True,
        )
        yield line


main()
