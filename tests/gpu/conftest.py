import pytest
import torch

NONE = "make test-gpu needs a GPU: torch finds neither CUDA nor MPS on this machine, so nothing was tested"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever does not ask for this tier does not get it."""
    if "gpu" not in config.option.markexpr:
        ours = [item for item in items if item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


@pytest.fixture
def kind() -> str:
    """Of the GPU that this machine has; without one the tier ends in one line, and has failed."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kinds = [kind for kind, is_here in found.items() if is_here]
    if not kinds:
        pytest.exit(NONE, 1)
    return kinds[0]
