"""`make bench-quick`: small shapes of what matters most, in two minutes. Nothing is to be reached by them."""

from collections.abc import Iterator

from .against_transformers import both_models, labelling, vision_forward, write_images
from .measure import Line
from .training_step import measured_step, workers

BATCH, CLASSES, FILES, TURNS = 8, 47, 16, 3


def quick() -> Iterator[Line]:
    with workers(CLASSES, BATCH) as (fast, plain):
        yield from measured_step(fast, plain, CLASSES, BATCH, turns=TURNS)
    with both_models() as (ours, theirs, folder):
        yield vision_forward(ours, theirs, BATCH, turns=TURNS)
        yield from labelling(ours, theirs, write_images(folder / "images", FILES), turns=TURNS)
