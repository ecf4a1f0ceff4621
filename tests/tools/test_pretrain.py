"""The script that trains the built-in model."""

import torch

from fedcopl.clip.frozen_clip import load_clip
from pretrain_glyph_clip import IMAGE, coarse_pixels, distort, fill_box, matching_loss, render_glyphs, save, train


def test_training_is_reproducible(tmp_path):
    for name in ("one", "two"):
        save(tmp_path / name, *train(steps=2, batch=8, seed=5))
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    clip = load_clip(tmp_path / "one")
    assert clip.image_size == IMAGE


def test_glyphs_are_rendered_and_stay_in_range():
    ink, labels = render_glyphs()
    assert ink.shape[0] == len(labels) == 17 * 62  # fonts x (digits, small and capital letters)
    assert (ink.amax((1, 2, 3)) > 0.5).all()  # no font lacks a glyph
    generator = torch.Generator().manual_seed(0)
    pixels = coarse_pixels(fill_box(distort(ink[:50], generator), generator))
    assert pixels.shape == (50, 3, IMAGE, IMAGE)
    assert pixels.min() >= -1
    assert pixels.max() <= 1


def test_matching_loss_by_hand():
    # Two images of class 0, one of class 1, all logits 0: ln 2 over texts; over images ln 3 for each text.
    loss = matching_loss(torch.zeros(3, 2), torch.tensor([0, 0, 1]))
    torch.testing.assert_close(loss, (torch.tensor(2.0).log() + torch.tensor(3.0).log()) / 2)
