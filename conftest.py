"""Settings for all tests."""

import gc
import os
import re
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# Who starts the tests in the background has them ignore Ctrl-C, and so would all processes that they start and stop.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Whoever runs the tests may be behind a proxy, have a narrow or a colourful terminal, and caches of their own.
THEIRS = re.compile(r"(?i:\w+_proxy)|COLUMNS|LINES|\w+_COLOR|CLICOLOR\w*|HF_\w+|GIT_\w+|FEDCOPL_CACHE|PYTHONHASHSEED")
for name in filter(THEIRS.fullmatch, list(os.environ)):
    del os.environ[name]

# Tests run one process per core; a second thread in each would only wait for the others. Before torch is loaded.
os.environ["OMP_NUM_THREADS"] = "1"
# For the same reason: the tests of workers say themselves how many they want.
os.environ.setdefault("FEDCOPL_WORKERS", "1")

# No test cuts the power: what a process has written every other one can read, without waiting for the disk.
os.fsync = lambda descriptor: None

# These machines are shared and noisy: a deadline would fail for want of a core, not for a fault. And the same examples
# every time: whoever changes a line should not fail for what nobody had drawn before.
settings.register_profile(
    "fedcopl", deadline=None, max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedcopl")

# What takes longest comes first, so that no core stands idle at the end; xdist would go by the number of tests. What
# mostly waits, for processes or a browser, stands between what computes: they run beside each other.
LONGEST = (
    "tests/test_plain_install.py",
    "tests/deployment/test_deployment.py",
    "tests/test_docs_federation.py",
    "tests/test_docs.py",
    "tests/deployment/test_flower_simulation.py",
    "tests/api/test_pages.py",
    "experiments/tests/test_grid_killed.py",
    "tests/test_docs_site.py",
    "tests/deployment/test_server_process.py",
    "tests/simulation/test_truth.py",
    "tests/classifier/test_prior.py",
    "tests/classifier/test_export.py",
    "tests/methods/test_other_models.py",
    "tests/review/test_review_browser.py",
    "tests/simulation/test_workers.py",
    "tests/report/test_in_browser.py",
    "tests/clip/test_clip.py",
    "tests/simulation/test_simulation.py",
    "tests/test_watch_browser.py",
    "tests/simulation/test_methods.py",
    "tests/methods/test_learner.py",
    "tests/cli/test_run_command.py",
    "experiments/tests/test_reproduce_command.py",
    "tests/cli/test_federation_commands.py",
    "tests/methods/test_all_methods.py",
    "experiments/tests/test_experiment_trackers.py",
    "tests/test_examples.py",
    "experiments/tests/test_grid.py",
    "tests/api/test_federation.py",
    "tests/classifier/test_classifier.py",
    "tests/cli/test_predict_command.py",
    "tests/cli/test_export_command.py",
    "tests/clip/test_siglip.py",
    "experiments/tests/test_results_command.py",
    "tests/test_architecture.py",
    "tests/deployment/test_site.py",
    "tests/cli/test_review_command.py",
    "tests/clip/test_tokenizer.py",
    "experiments/tests/test_experiment_catalog.py",
)
# Whose tests are long and share nothing: each goes to whichever core is free.
ONE_BY_ONE = {
    "tests/deployment/test_deployment.py",
    "tests/deployment/test_flower_simulation.py",
    "tests/api/test_pages.py",
    "tests/test_docs.py",
    "tests/simulation/test_truth.py",
    "experiments/tests/test_grid_killed.py",
    "tests/test_docs_site.py",
    "tests/deployment/test_server_process.py",
}


# Files which share what one of them has made or loaded: one core does them all.
TOGETHER = {
    # Who writes ONNX loads a compiler first, which takes longer than to write.
    "tests/classifier/test_prior.py": "ONNX",
    "tests/classifier/test_export.py": "ONNX",
    "tests/methods/test_other_models.py": "ONNX",
    # The same plain runs, of tests/few_sites.py.
    "tests/simulation/test_workers.py": "few sites",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests: the long ones first, of each of their files in turn, as some compute and others wait."""
    order = {name: number for number, name in enumerate(LONGEST)}
    turns: Counter[str] = Counter()

    def rank(item: pytest.Item) -> tuple[bool, int, int]:
        file = item.path.relative_to(Path(__file__).parent).as_posix()
        long = file in ONE_BY_ONE and item.get_closest_marker("slow") is not None
        turns[file] += long
        return not long, turns[file] if long else 0, order.get(file, len(order))

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what tests load goes again: nobody looks for it, over and over as it grows to a million objects.

    Also later not, when a test forks workers: the program looks through all objects first, which took a second.
    """
    gc.disable()
    collected = yield
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None  # which the program calls after a fork: all would come back
    return collected


class FilesAndLongTests(LoadScopeScheduling):
    """A whole file to a core, because its tests share what was made for them; but of some files test by test."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return nodeid if file in ONE_BY_ONE else TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    """In the stead of `--dist loadfile`."""
    return FilesAndLongTests(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With `--durations`: also the files that took longest, because many short tests are long together."""
    if not config.getoption("durations"):
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.split("::")[0]] += report.duration
    terminalreporter.section(f"slowest files, of {seconds.total():.0f} s together")
    for file, took in seconds.most_common(25):
        terminalreporter.write_line(f"{took:6.1f}s {file}")
