"""CLIP, its prompts and their training. Torch lives in this package and nowhere else."""
