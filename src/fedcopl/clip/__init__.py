"""The frozen CLIP: towers, tokenizer, preparation, forms of weights."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .frozen_clip import Clip, load_clip

__all__ = ["Clip", "load_clip"]


def __getattr__(name: str) -> Any:
    """The public names, without torch for those who only want to preprocess images."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import frozen_clip

    return getattr(frozen_clip, name)
