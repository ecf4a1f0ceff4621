"""`make bench`: measure, print a table, and write the results as JSON.

python -m benchmarks [NAME ...] [--json FILE] [--record]
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from fedcopl.clip.device import keep_freed_memory

from .against_transformers import against_transformers
from .counted_work import counted_work
from .flower_overhead import flower_overhead
from .frozen_images import frozen_images
from .history import FILE, record, this_run
from .history_page import write_page
from .measure import Line, NotMeasured, this_machine
from .quick import quick
from .simulated_clients import simulated_clients, ten_thousand_clients
from .training_step import training_step
from .workers import workers

BENCHMARKS: dict[str, Callable[[], Iterator[Line]]] = {
    "counted_work": counted_work,
    "training_step": training_step,
    "against_transformers": against_transformers,
    "frozen_images": frozen_images,
    "simulated_clients": simulated_clients,
    "ten_thousand_clients": ten_thousand_clients,
    "workers": workers,
    "flower_overhead": flower_overhead,
}
KNOWN = BENCHMARKS | {"quick": quick}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(KNOWN)}; default: all except quick"
    )
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="file for the results")
    parser.add_argument("--record", action="store_true", help=f"add the results to {FILE.name} and to the page")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(KNOWN)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))} (known: {', '.join(KNOWN)})")
    keep_freed_memory()  # as in every run
    machine = this_machine()
    if not (machine.proc / "stat").exists():
        sys.exit("the benchmarks need Linux: /proc/stat is needed to detect a busy machine")
    print(f"{machine.model}, {machine.processors} processors, {torch.get_num_threads()} threads")
    print(f"{'what':<62}{'against':<19}{'ratio':<20}{'reach':<9}detail")
    lines = [line for name in arguments.names or BENCHMARKS for line in print_lines(KNOWN[name])]
    run = this_run(lines)
    arguments.json.write_text(json.dumps({**asdict(run), "all": [asdict(line) for line in lines]}, indent=1))
    if arguments.record and run.lines:
        record(run)
        write_page()
        print(f"{len(run.lines)} of {len(lines)} lines recorded in {FILE.name} and benchmarks/README.md")


def print_lines(benchmark: Callable[[], Iterator[Line]]) -> Iterator[Line]:
    """Print and yield each line as soon as it is measured."""
    for line in benchmark():
        print(f"{line.what:<62}{line.against:<19}{_result(line)}", flush=True)
        yield line


def _result(line: Line) -> str:
    if isinstance(line.ratio, NotMeasured):
        return line.ratio.why
    reach = "" if line.reach is None else f"{'<=' if line.at_most else '>='} {line.reach:g}"
    mark = "  NOT REACHED" if line.reached is False else ""
    return f"{line.ratio!s:<20}{reach:<9}{line.detail}{mark}"


if __name__ == "__main__":
    main()
