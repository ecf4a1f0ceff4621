"""The frozen CLIP: towers, tokenizer, image transform, checkpoint formats."""
