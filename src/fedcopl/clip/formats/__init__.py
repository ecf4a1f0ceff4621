"""The forms in which CLIP's weights come: a hub's names, OpenAI's files, Hugging Face folders, TorchScript archives."""
