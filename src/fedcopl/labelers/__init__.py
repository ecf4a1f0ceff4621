"""Pseudo labelers, one file each, and their registry.

A new labeler is a file here, its test, one line below, a row in docs/methods.md and a line in CHANGELOG.md.
"""

from ..config import RunConfig
from ..registry import Registry
from .base import Labeler as Labeler
from .copl import CoPL
from .cpl import CPL
from .fpl import FPL
from .soft import Soft
from .threshold import Threshold
from .upl import UPL

LABELERS: Registry[type[Labeler]] = Registry(
    "labeler", {"copl": CoPL, "fpl": FPL, "cpl": CPL, "upl": UPL, "threshold": Threshold, "soft": Soft}
)


def choose_labeler(config: RunConfig) -> Labeler:
    """Build the labeler of the setting `labeler` and validate its options."""
    return LABELERS.find(config.labeler)(config)
