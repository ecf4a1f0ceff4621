"""Encoding in chunks: less memory, and the same bits."""

import pytest
import torch

from fedcopl.clip.device import Arithmetic, limit_threads
from fedcopl.clip.encoder import CHUNK_TOKENS, Encoder
from fedcopl.clip.frozen_clip import load_clip


@pytest.mark.parametrize("images", [1, 58, 59, 60, 118, 119, 256])
def test_encoding_in_chunks_is_bit_identical_to_the_batch(images):
    encoder = Encoder(load_clip("glyph-clip"), ["a", "b"], "{}", Arithmetic(torch.device("cpu")))
    tokens = torch.randn(images, 17, 128, generator=torch.Generator().manual_seed(images))
    visual = 0.02 * torch.randn(3, 5, 128, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(), limit_threads(1):
        chunks = encoder.chunks(tokens)
        assert len(chunks) == -(-17 * images // CHUNK_TOKENS)  # of 58 images at the most
        for prompts in (None, visual):
            whole = encoder.image_features(tokens, prompts)
            assert torch.equal(torch.cat([encoder.image_features(chunk, prompts) for chunk in chunks]), whole)
