"""FedCoPL: cooperative pseudo labelling for unsupervised federated classification (ICCV 2025).

The import is fast: each public name loads its module when it is first used.
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
_LAZY = {  # public name -> module and name in it
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
    """Load a public name, or the installed version, when it is first used."""
    if name == "__version__":
        return import_module("importlib.metadata").version("fedcopl")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(f".{module}", __name__), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
