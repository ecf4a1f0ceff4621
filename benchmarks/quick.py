"""`make bench-quick`: the main benchmarks on smaller shapes, in two minutes, without targets."""

from collections.abc import Iterator

from .against_transformers import both_models, labelling, vision_forward, write_images
from .measure import Line
from .training_step import measured_step, workers

BATCH, CLASSES, FILES, TURNS = 8, 47, 16, 3


def quick() -> Iterator[Line]:
    with workers(CLASSES, BATCH) as (fast, plain):
        yield from measured_step(fast, plain, CLASSES, BATCH, turns=TURNS)
    with both_models() as (clip, reference, folder):
        yield vision_forward(clip, reference, BATCH, turns=TURNS)
        yield from labelling(clip, reference, write_images(folder / "images", FILES), turns=TURNS)
