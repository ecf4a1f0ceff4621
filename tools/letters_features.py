"""Write the letters of the priors study: glyph-clip's features of printed characters under heavy noise.

    python tools/letters_features.py OUT.npz

Glyph-clip's 36 characters are rendered and distorted as in its training, then noise is added until its zero-shot
predictions are often wrong. `python -m fedcopl_experiments.priors_study run --npz OUT.npz` reads the file.
"""

import sys

import numpy as np
import torch

from fedcopl.clip.device import choose_arithmetic
from fedcopl.clip.encoder import Encoder
from fedcopl.clip.frozen_clip import load_clip
from pretrain_glyph_clip import NAMES, coarse_pixels, distort, fill_box, render_glyphs

IMAGES, NOISE, BATCH = 1800, 0.4, 256  # images of each split; standard deviation of the noise


def main(out: str) -> None:
    """Render, distort and encode both splits, with the same number of images of each class."""
    encoder = Encoder(load_clip("glyph-clip"), NAMES, "a photo of a {}", choose_arithmetic("cpu", "fp32"))
    glyphs, labels = render_glyphs()
    random = torch.Generator().manual_seed(0)
    arrays = {"text": encoder.class_features(None).numpy(force=True), "scale": float(encoder.clip.logit_scale)}
    for split in ("train", "test"):
        chosen = []
        for label in range(len(NAMES)):
            members = (labels == label).nonzero().ravel()
            chosen.append(members[torch.randint(len(members), (IMAGES // len(NAMES),), generator=random)])
        index = torch.cat(chosen)
        pixels = coarse_pixels(fill_box(distort(glyphs[index], random), random))
        pixels = pixels + NOISE * torch.randn(pixels.shape, generator=random)
        with torch.inference_mode():
            batches = [encoder.image_features(encoder.clip.vision.embed(batch)) for batch in pixels.split(BATCH)]
        arrays[split], arrays[f"{split}_y"] = torch.cat(batches).numpy(), labels[index].numpy()
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
