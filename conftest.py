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

# A shell starts background jobs with SIGINT ignored; the processes that the tests start and interrupt would inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests do not depend on the user's proxy, terminal, caches and git settings.
USER_VARIABLES = re.compile(
    r"(?i:\w+_proxy)|COLUMNS|LINES|\w+_COLOR|CLICOLOR\w*|HF_\w+|GIT_\w+|FEDCOPL_CACHE|PYTHONHASHSEED"
)
for name in filter(USER_VARIABLES.fullmatch, list(os.environ)):
    del os.environ[name]

# xdist starts one process per core: one thread in each, set before torch is imported, and one worker by default.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("FEDCOPL_WORKERS", "1")

# No test simulates a power failure, and other processes read written files also without fsync.
os.fsync = lambda descriptor: None

# No deadline, because a busy machine would exceed it without a fault; the same examples in every run, so that a change
# of one line does not fail for an unrelated example.
settings.register_profile(
    "fedcopl", deadline=None, max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedcopl")

# The slowest files start first, so that no core is idle at the end; xdist would sort by the number of tests. Files that
# wait for processes or a browser alternate with files that compute.
SLOWEST_FILES = (
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
# Files with slow tests that share no fixtures: each test goes to the next free core.
SPLIT_FILES = {
    "tests/deployment/test_deployment.py",
    "tests/deployment/test_flower_simulation.py",
    "tests/api/test_pages.py",
    "tests/test_docs.py",
    "tests/simulation/test_truth.py",
    "experiments/tests/test_grid_killed.py",
    "tests/test_docs_site.py",
    "tests/deployment/test_server_process.py",
}

# Files that share expensive imports or cached results: one core runs all files of a group.
GROUPS = {
    # An export to ONNX imports a compiler first, which takes longer than the export.
    "tests/classifier/test_prior.py": "ONNX",
    "tests/classifier/test_export.py": "ONNX",
    "tests/methods/test_other_models.py": "ONNX",
    # The reference runs of tests/few_sites.py.
    "tests/simulation/test_workers.py": "few sites",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slow tests of `SPLIT_FILES` first, alternating between the files, then the other files, slowest first."""
    order = {name: number for number, name in enumerate(SLOWEST_FILES)}
    slow_tests: Counter[str] = Counter()

    def rank(item: pytest.Item) -> tuple[bool, int, int]:
        file = item.path.relative_to(Path(__file__).parent).as_posix()
        splits = file in SPLIT_FILES and item.get_closest_marker("slow") is not None
        slow_tests[file] += splits
        return not splits, slow_tests[file] if splits else 0, order.get(file, len(order))

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the objects of imported test modules, a million, so that the garbage collector does not traverse them.

    The program freezes the collector before it forks workers and unfreezes it afterwards, which would undo this.
    """
    gc.disable()
    collected = yield
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None
    return collected


class FilesAndLongTests(LoadScopeScheduling):
    """Assigns a whole file or group to a core, because its tests share fixtures, except the tests of `SPLIT_FILES`."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return nodeid if file in SPLIT_FILES else GROUPS.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    """Replace the scheduler of `--dist loadfile`."""
    return FilesAndLongTests(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the 25 slowest files with `--durations`; a file of many short tests may be among them."""
    if not config.getoption("durations"):
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.split("::")[0]] += report.duration
    terminalreporter.section(f"slowest files, of {seconds.total():.0f} s in total")
    for file, duration in seconds.most_common(25):
        terminalreporter.write_line(f"{duration:6.1f}s {file}")
