"""CLIP, its prompts and their training. Torch lives in this package and nowhere else."""

from .clip import Clip, load_clip

__all__ = ["Clip", "load_clip"]
