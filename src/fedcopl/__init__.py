"""FedCoPL: cooperative pseudo labelling for unsupervised federated classification (ICCV 2025).

Importing this loads neither torch nor matplotlib; what needs them brings them when it is called.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import RunConfig
from .config import load as load_config
from .errors import FedCoPLError

if TYPE_CHECKING:
    from .engines.watcher import Watcher

__all__ = ["FedCoPLError", "RunConfig", "load_config", "simulate"]


def simulate(
    config: RunConfig, folder: Path, *, resume: bool = False, watcher: "Watcher | None" = None
) -> dict[str, Any]:
    """Run a federation in this process; its results, which are also written into `folder`."""
    from .engines.simulation import simulate as run_simulation

    return run_simulation(config, folder, resume=resume, watcher=watcher)
