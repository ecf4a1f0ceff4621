"""Looks at images, few at a time: less memory, and the same bits."""

import pytest
import torch

from fedcopl.clip import load_clip
from fedcopl.clip.device import Arithmetic, threads_of_arithmetic
from fedcopl.clip.encoder import ROWS_AT_ONCE, Encoder
from fedcopl.clip.in_company import NEVER


@pytest.mark.parametrize("images", [1, 58, 59, 60, 118, 119, 256])
def test_looks_at_few_images_at_a_time_have_the_bits_of_all_at_once(images):
    of_glyphs = Encoder(load_clip("glyph-clip"), ["a", "b"], "{}", Arithmetic(torch.device("cpu")))
    tokens = torch.randn(images, 17, 128, generator=torch.Generator().manual_seed(images))
    visual = 0.02 * torch.randn(3, 5, 128, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(), threads_of_arithmetic(1):
        lots = of_glyphs.lots(tokens)
        assert len(lots) == -(-17 * images // ROWS_AT_ONCE)  # of 58 images at the most
        for prompts in (None, visual):
            whole = of_glyphs.image_features(tokens, prompts)
            assert torch.equal(torch.cat([of_glyphs.image_features(lot, prompts) for lot in lots]), whole)


def test_where_bits_depend_on_company_nobody_is_parted(monkeypatch):
    of_glyphs = Encoder(load_clip("glyph-clip"), ["a", "b"], "{}", Arithmetic(torch.device("cpu")))
    tokens = torch.zeros(256, 17, 128)
    for alike_from, lots in ((1, 5), (51, 5), (52, 1), (NEVER, 1)):  # the smallest of five lots has 51 images
        monkeypatch.setattr(of_glyphs, "_alike_from", alike_from)
        assert len(of_glyphs.lots(tokens)) == lots
