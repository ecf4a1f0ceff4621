"""Checkpoint formats of CLIP: Hugging Face and open_clip folders, OpenAI's files."""
