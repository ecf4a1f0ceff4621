"""How far a ranking without labels was right: two models and spoilt copies of them, on digits and on CIFAR-10.

.venv/bin/python tools/choosing_study.py PHOTO_CLIP CIFAR_FOLDER

Prints a table in Markdown. The truth is used to judge the ranking, never to make it.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from fedcopl.algorithm.choosing import balanced, rank_correlation, scores, signals
from fedcopl.clip.device import choose_arithmetic
from fedcopl.clip.encoder import Encoder
from fedcopl.clip.frozen_clip import Clip, load_clip
from fedcopl.config import Data
from fedcopl.data.catalog import load_dataset
from fedcopl.predict.compare_models import changed_a_little, log_probabilities

IMAGES = 300
SPOILT = (0.0, 0.05, 0.1, 0.4)  # noise on every weight of the vision blocks, in standard deviations of that weight


def spoilt(name: str, noise: float) -> Clip:
    clip = load_clip(name)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in clip.vision.blocks.parameters():
            weight.data = weight + noise * weight.std() * torch.randn(weight.shape, generator=generator)
    return clip


def study(title: str, data: Data, names: list[str]) -> None:
    dataset = load_dataset(data)
    rows = np.random.default_rng(0).permutation(len(dataset.test))[:IMAGES]
    pictures, truth = [dataset.test.images[int(row)] for row in rows], dataset.test.labels[rows]
    plain, changed, right, called = [], [], [], []
    for name in names:
        for noise in SPOILT:
            clip = spoilt(name, noise)
            encoder = Encoder(clip, dataset.classes, dataset.template, choose_arithmetic("cpu", "fp32"))
            for into, some in ((plain, pictures), (changed, [changed_a_little(image) for image in pictures])):
                into.append(log_probabilities(encoder, np.stack([clip.preprocess.cut(image) for image in some])))
            right.append(float((balanced(plain[-1]).argmax(axis=1) == truth).mean()))
            called.append(f"{Path(name).name}, noise {noise:g}")
    found = signals(plain, changed)
    score = scores(found)
    print(f"\n**{title}**, {len(rows)} test images\n")
    print("| model | confidence | stability | agreement | score | accuracy |\n|---|---|---|---|---|---|")
    for i in np.argsort(-score):
        one = found[i]
        cells = (one.confidence, one.stability, one.agreement, score[i], right[i])
        print(f"| {called[i]} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    by_signal = {
        name: rank_correlation(np.array([getattr(one, name) for one in found]), np.array(right))
        for name in ("confidence", "stability", "agreement")
    }
    by_itself = ", ".join(f"{name} {value:.2f}" for name, value in by_signal.items())
    print(f"\nRank correlation with accuracy: {by_itself}, score {rank_correlation(score, np.array(right)):.2f}.")


if __name__ == "__main__":
    photo, cifar = sys.argv[1:]
    torch.set_num_threads(1)
    study("Digits", Data(source="digits"), ["glyph-clip", photo])
    study("CIFAR-10", Data(source="cifar10", path=cifar), ["glyph-clip", photo])
