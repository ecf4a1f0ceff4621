"""Frozen features for `priors_study.py`, computed once: unit image features, unit class features, labels, logit scale.

    .venv/bin/python tools/priors_features.py --photo-clip ../shared/models/photo-clip --cifar /tmp/cifar

`digits` and `letters` need nothing but the package; `cifar10` needs the data and photo-clip. `letters` are glyph-clip's
36 characters, distorted as in its training and then spoilt with noise, so that its zero-shot answers are often wrong.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from fedcopl.clip import load_clip
from fedcopl.clip.device import choose_arithmetic
from fedcopl.clip.encoder import Encoder
from fedcopl.clip.image_tokens import TokenStore
from fedcopl.config import Data
from fedcopl.data.catalog import load_dataset
from pretrain_glyph_clip import NAMES, coarse_pixels, distort, fill_box, render_glyphs

BATCH = 256
CIFAR_TRAIN, CIFAR_TEST = 6000, 3000  # drawn once; the study takes its 600 and 400 from these
LETTERS_TRAIN, LETTERS_TEST, LETTERS_NOISE = 1800, 1800, 0.4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("/tmp/priors"))
    parser.add_argument("--photo-clip", default="../shared/models/photo-clip")
    parser.add_argument("--cifar", default="/tmp/cifar")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    makers = {
        "digits": digits,
        "letters": letters,
        "cifar10": lambda: cifar(arguments.cifar, arguments.photo_clip),
    }
    for name, make in makers.items():
        if arguments.only in name and not (arguments.out / f"{name}.npz").exists():
            np.savez_compressed(arguments.out / f"{name}.npz", **make())
            print(name, flush=True)


def digits() -> dict:
    dataset = load_dataset(Data(source="digits"))
    encoder = encoder_of("glyph-clip", dataset.classes, dataset.template)
    parts = {name: (pictures(encoder, part.images), part.labels) for name, part in halves(dataset).items()}
    return packed(encoder, parts)


def cifar(path: str, model: str) -> dict:
    dataset = load_dataset(Data(source="cifar10", path=path))
    encoder = encoder_of(model, dataset.classes, dataset.template)
    rng = np.random.default_rng(0)
    parts = {}
    for (name, part), wanted in zip(halves(dataset).items(), (CIFAR_TRAIN, CIFAR_TEST), strict=True):
        places = rng.permutation(len(part))[:wanted]
        parts[name] = pictures(encoder, [part.images[int(place)] for place in places]), part.labels[places]
    return packed(encoder, parts)


def letters() -> dict:
    encoder = encoder_of("glyph-clip", NAMES, "a photo of a {}")
    ink, place = render_glyphs()
    generator = torch.Generator().manual_seed(0)
    parts = {}
    for name, wanted in (("train", LETTERS_TRAIN), ("test", LETTERS_TEST)):
        # As many of each class, whichever of its two cases.
        chosen = torch.cat([_some(place == c, wanted // len(NAMES), generator) for c in range(len(NAMES))])
        pixels = coarse_pixels(fill_box(distort(ink[chosen], generator), generator))
        pixels = pixels + LETTERS_NOISE * torch.randn(pixels.shape, generator=generator)
        parts[name] = features(encoder, pixels), place[chosen].numpy()
    return packed(encoder, parts)


def _some(mask: torch.Tensor, wanted: int, generator: torch.Generator) -> torch.Tensor:
    places = mask.nonzero().ravel()
    return places[torch.randint(len(places), (wanted,), generator=generator)]


def encoder_of(model: str, classes, template: str) -> Encoder:
    return Encoder(load_clip(model), classes, template, choose_arithmetic("cpu", "fp32"))


def halves(dataset) -> dict:
    return {"train": dataset.train, "test": dataset.test}


def pictures(encoder: Encoder, images) -> np.ndarray:
    cut = np.stack([encoder.clip.preprocess.cut(image) for image in images])
    store = TokenStore(encoder.clip, cut)
    tokens = (store[np.arange(start, min(start + BATCH, len(cut)))] for start in range(0, len(cut), BATCH))
    with torch.inference_mode():
        return torch.cat([encoder.image_features(batch) for batch in tokens]).numpy()


def features(encoder: Encoder, pixels: torch.Tensor) -> np.ndarray:
    with torch.inference_mode():
        return torch.cat([encoder.image_features(encoder.clip.vision.embed(b)) for b in pixels.split(BATCH)]).numpy()


def packed(encoder: Encoder, parts: dict) -> dict:
    train, test = parts["train"], parts["test"]
    text = encoder.class_features(None).numpy()
    scale = float(encoder.clip.logit_scale)
    return {"train": train[0], "train_y": train[1], "test": test[0], "test_y": test[1], "text": text, "scale": scale}


if __name__ == "__main__":
    main()
