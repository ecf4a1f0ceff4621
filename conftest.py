"""Settings for all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Tests run one process per core; a second thread in each would only wait for the others. Before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# These machines are shared and noisy: a deadline would fail for want of a core, not for a fault.
settings.register_profile("fedcopl", deadline=None, max_examples=40)
settings.load_profile("fedcopl")

# What takes longest comes first, so that no core stands idle at the end; xdist would go by the number of tests.
LONGEST = (
    "tests/deployment/test_deployment.py",
    "tests/simulation/test_simulation.py",
    "tests/simulation/test_methods.py",
    "tests/test_docs.py",
    "tests/clip/test_clip.py",
    "tests/review/test_review_browser.py",
    "experiments/tests/test_grid_killed.py",
    "tests/api/test_pages.py",
    "tests/deployment/test_flower_simulation.py",
    "tests/cli/test_run_command.py",
    "tests/report/test_in_browser.py",
    "tests/api/test_federation.py",
    "experiments/tests/test_grid.py",
    "experiments/tests/test_reproduce_command.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files; within a file nothing changes."""
    places = {name: place for place, name in enumerate(LONGEST)}
    root = Path(__file__).parent
    items.sort(key=lambda item: places.get(item.path.relative_to(root).as_posix(), len(places)))
