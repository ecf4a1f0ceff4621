"""FedCoPL: cooperative pseudo labelling for unsupervised federated classification (ICCV 2025).

Importing this loads neither torch nor matplotlib; what needs them brings them when it is first used.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from .config import RunConfig
from .config import load as load_config
from .errors import FedCoPLError

if TYPE_CHECKING:
    __version__: str
    from .api import Federation, Result, Site, simulate
    from .predict import Classifier

__all__ = [
    "Classifier",
    "FedCoPLError",
    "Federation",
    "Result",
    "RunConfig",
    "Site",
    "load_config",
    "simulate",
]
LATE = {"Classifier": "predict", "Federation": "api", "Result": "api", "Site": "api", "simulate": "api"}


def __getattr__(name: str) -> Any:
    """The names that bring torch along, when somebody asks for them, and the version that is installed."""
    if name == "__version__":
        return version("fedcopl")
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{LATE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
