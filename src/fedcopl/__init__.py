"""FedCoPL: cooperative pseudo labelling for unsupervised federated classification (ICCV 2025).

Importing this loads next to nothing; each name loads what it needs when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import FedCoPLError

if TYPE_CHECKING:
    __version__: str
    from .api import Federation, Result, Site, simulate
    from .classifier import Classifier
    from .config import RunConfig
    from .config import load as load_config
    from .plugins import load_plugin

__all__ = [
    "Classifier",
    "FedCoPLError",
    "Federation",
    "Result",
    "RunConfig",
    "Site",
    "load_config",
    "load_plugin",
    "simulate",
]
_LATE = {  # name -> module and name in it
    "Classifier": ("classifier", "Classifier"),
    "Federation": ("api", "Federation"),
    "Result": ("api", "Result"),
    "RunConfig": ("config", "RunConfig"),
    "Site": ("api", "Site"),
    "load_config": ("config", "load"),
    "load_plugin": ("plugins", "load_plugin"),
    "simulate": ("api", "simulate"),
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used; also the version that is installed."""
    if name == "__version__":
        return import_module("importlib.metadata").version("fedcopl")
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LATE[name]
    return getattr(import_module(f".{module}", __name__), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
