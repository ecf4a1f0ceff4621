"""CLIP, its prompts and their training. Torch lives in this package and nowhere else."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clip import Clip, load_clip

__all__ = ["Clip", "load_clip"]


def __getattr__(name: str) -> Any:
    """The public names, without torch for those who only want to preprocess images."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import clip

    return getattr(clip, name)
