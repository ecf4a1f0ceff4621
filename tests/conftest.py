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
    "engines/flower/test_deployment.py",
    "engines/test_simulation.py",
    "engines/test_methods.py",
    "test_docs.py",
    "model/test_clip.py",
    "web/test_review_browser.py",
    "experiments/test_grid_killed.py",
    "api/test_pages.py",
    "engines/flower/test_flower_simulation.py",
    "cli/test_run_command.py",
    "report/test_in_browser.py",
    "api/test_federation.py",
    "experiments/test_grid.py",
    "cli/test_reproduce_command.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files; within a file nothing changes."""
    places = {name: place for place, name in enumerate(LONGEST)}
    root = Path(__file__).parent
    items.sort(key=lambda item: places.get(item.path.relative_to(root).as_posix(), len(places)))
