"""How fast the frozen towers compute here: a few images and sentences are tried, or a bare matrix product."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .frozen_clip import Clip
from .tower_work import embedding_work, image_work, text_work

CPU = torch.device("cpu")
GOES = 3
SHORTEST = 1e-6  # seconds that a clock is believed
TRIED = 16  # images and sentences that are timed
WORDS = " ".join(["a"] * 16)  # as long as a prompt before the name of a class
PRODUCT = (3200, 768, 3072)  # 64 images of a ViT-B/32 into the hidden layer
SHARE_OF_PRODUCT = 0.7  # what whole towers get of the rate of a bare product: docs/benchmarks.md


@dataclass(frozen=True)
class TowerRates:
    """FLOP a second of the two towers."""

    images: float
    texts: float


@torch.inference_mode()
def try_towers(clip: Clip) -> TowerRates:
    """A model that is at hand says itself how fast it is."""
    pixels = torch.zeros(TRIED, 3, clip.image_size, clip.image_size)
    sentences = clip.sentences([f"{WORDS} {'abcdefghijklmnop'[number]} cat" for number in range(TRIED)])
    seeing = (embedding_work(clip) + image_work(clip)).forward * TRIED
    shared, own = len(sentences.shared), sentences.rest.shape[1]
    reading = text_work(clip, TRIED, own, shared - 1 if shared else 0).forward
    return TowerRates(
        seeing / _seconds(lambda: clip.encode_image(pixels)), reading / _seconds(lambda: clip.text(sentences, None))
    )


def try_product(device: torch.device) -> TowerRates:
    """What towers that are not at hand may reach here, by a bare matrix product."""
    rows, given, made = PRODUCT
    a, b = torch.zeros(rows, given, device=device), torch.zeros(given, made, device=device)
    took = _seconds(lambda: (a @ b).sum().item(), device)  # which waits for a GPU to be done
    rate = SHARE_OF_PRODUCT * 2 * rows * given * made / took
    return TowerRates(rate, rate)


def _seconds(work: Callable[[], object], device: torch.device = CPU) -> float:
    """The best of a few goes after one that sets everything up.

    On a CPU it is the processor's time, shared by torch's threads: as long as it takes where nobody else is at work.
    """
    work()
    return min(_one_go(work, device) for _ in range(GOES))


def _one_go(work: Callable[[], object], device: torch.device) -> float:
    clock, threads = (time.process_time, torch.get_num_threads()) if device == CPU else (time.perf_counter, 1)
    began = clock()
    work()
    return max(clock() - began, SHORTEST) / threads
