"""The frozen CLIP: towers, tokenizer, image transform, checkpoint formats."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .frozen_clip import Clip, load_clip

__all__ = ["Clip", "load_clip"]


def __getattr__(name: str) -> Any:
    """Load the public names lazily, so that image transforms do not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import frozen_clip

    return getattr(frozen_clip, name)
