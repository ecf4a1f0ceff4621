"""What a run has to compute, send and remember, before it is played: `docs/scale.md`.

One model for everybody: `fedcopl doctor` and `fedcopl reproduce --dry-run` differ only in whom they ask how
fast the machine is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..clip.frozen_clip import Clip
from ..clip.image_tokens import ENCODE_BATCH
from ..clip.timing import TowerRates
from ..clip.tower_work import (
    embedding_work,
    image_work,
    images_in_a_lot,
    prompt_work,
    text_work,
    token_bytes,
    weight_bytes,
)
from ..config import RunConfig
from ..labelers import choose_labeler
from ..messages import (
    Estimate,
    Estimated,
    Evaluate,
    Evaluated,
    Reply,
    Request,
    Select,
    Selected,
    Shared,
    Train,
    Trained,
    payload_bytes,
)
from ..methods import choose_method, settled
from ..methods.base import Method
from ..methods.prompts import Shape

GIGABYTE = 10**9
PROGRAM = 0.55 * GIGABYTE  # Python, torch and all else
KEPT_FREED = 1.4  # times what is in use, as freed memory is kept for the next time, decision 7
SHARE_LABELLED = 0.5  # of the images, by the median filters
ZERO_SHOT_WORDS = 5  # of a template, about
GUARD_LOOKS = 2  # in a round: the average that came, and what training made of it
GUARD_SUMS = 6


@dataclass(frozen=True)
class RunSize:
    """How much there is to look at."""

    train: int
    test: int
    clients: int
    classes: int
    words: int  # tokens of the longest class name with its full stop and end


@dataclass(frozen=True)
class RunCost:
    """FLOP of the two towers by what they are for, bytes in memory at the highest, bytes sent."""

    embedding: float
    labelling: float  # and measuring: images that are looked at
    training: float  # images, both ways
    sentences: float  # looked at
    trained_sentences: float  # both ways
    memory: float
    up: int
    down: int

    @property
    def flop(self) -> float:
        return self.images + self.texts

    @property
    def images(self) -> float:
        """FLOP of the vision tower."""
        return self.embedding + self.labelling + self.training

    @property
    def texts(self) -> float:
        """FLOP of the text tower."""
        return self.sentences + self.trained_sentences

    def seconds(self, rates: TowerRates) -> float:
        """On a machine of such rates, if nothing else takes time."""
        return self.images / rates.images + self.texts / rates.texts


@dataclass(frozen=True)
class Passes:
    """How often what is done in a run."""

    plain_looks: float  # images by plain CLIP
    looks: float  # images by a prompted tower
    trained: float  # images, there and back
    steps: float
    text_passes: float

    @classmethod
    def of(cls, config: RunConfig, method: Method, size: RunSize) -> "Passes":
        refreshes = math.ceil(config.rounds / config.labels.refresh_every)
        measured = math.ceil(config.rounds / config.evaluation.every)
        plain = cls(size.train + size.test, 0, 0, 0, 1)
        if not method.trains:
            return plain
        who = 1 if method.pools else size.clients
        taking_part = max(math.floor(who * config.sharing.participation), 1)
        chosen = _chosen(config, size) * taking_part / who
        test_set = chosen * config.train.holdout
        trained = config.rounds * config.train.epochs * (chosen - test_set)
        a_client = (chosen - test_set) / taking_part
        steps = config.rounds * config.train.epochs * taking_part * math.ceil(a_client / config.train.batch)
        models = who if config.evaluation.everywhere and "visual" not in method.shared() else 1
        looks = size.train * (refreshes - 1) + size.test * measured * models + GUARD_LOOKS * config.rounds * test_set
        return replace(plain, looks=looks, trained=trained, steps=steps, text_passes=1 + who * (refreshes + measured))


def _chosen(config: RunConfig, size: RunSize) -> float:
    """How many images have a pseudo label."""
    if config.labeler == "copl":
        return SHARE_LABELLED * size.train
    return min(config.labels.per_class * size.classes * size.clients, size.train)


def run_cost(config: RunConfig, clip: Clip, size: RunSize) -> RunCost:
    """Of all rounds, with everybody there to the end."""
    config, method = settled(config), choose_method(config)
    shapes = method.shapes(clip, size.classes)
    passes = Passes.of(config, method, size)
    levels, vectors, _ = shapes.get("visual", (0, 0, 0))
    contexts = [shape[0] for name, shape in shapes.items() if name.split()[-1] == "text"]
    plain, prompted = image_work(clip), image_work(clip, vectors, levels)
    prompts = prompt_work(clip, vectors, levels).both_ways * passes.steps
    words = [text_work(clip, size.classes, size.words, context) for context in contexts]
    hand_written = text_work(clip, size.classes, size.words, ZERO_SHOT_WORDS)
    is_kept = method.keeps_images  # then every image is looked at once
    seen = passes.plain_looks + (0 if is_kept else passes.looks + passes.trained)
    once = token_bytes(clip) * max(size.train, size.test) <= config.model.memory * GIGABYTE
    up, down = bytes_sent(config, method, {name: shapes[name] for name in method.shared()}, size)
    return RunCost(
        embedding=embedding_work(clip).forward * (size.train + size.test if once else seen),
        labelling=plain.forward * passes.plain_looks + (0 if is_kept else prompted.forward * passes.looks),
        training=0 if is_kept else prompted.both_ways * passes.trained + prompts,
        sentences=hand_written.forward + sum(work.forward for work in words) * (passes.text_passes - 1),
        trained_sentences=sum(work.both_ways for work in words) * passes.steps,
        memory=memory_of(config, clip, size),
        up=up,
        down=down,
    )


def memory_of(config: RunConfig, clip: Clip, size: RunSize) -> float:
    """Bytes: program, weights, images that are kept, and a step of training or a look, whichever is more."""
    limit = config.model.memory * GIGABYTE
    kept = sum(needed if needed <= limit else 0 for needed in (token_bytes(clip) * n for n in (size.train, size.test)))
    return PROGRAM + weight_bytes(clip) + kept + working_memory(config, clip, size)


def working_memory(config: RunConfig, clip: Clip, size: RunSize) -> float:
    """Bytes that each process needs for itself, where several share the program, the weights and the images."""
    images = min(ENCODE_BATCH, max(size.train, size.test))
    if config.model.threads <= 1:
        images = images_in_a_lot(clip, images)
    return KEPT_FREED * max(step_memory(config, clip, size), look_memory(clip, images))


def step_memory(config: RunConfig, clip: Clip, size: RunSize) -> float:
    """What a step of training has in memory at once, beside weights and images."""
    method = choose_method(config)
    shapes = method.shapes(clip, size.classes)
    levels, vectors, _ = shapes.get("visual", (0, 0, 0))
    contexts = [shape[0] for name, shape in shapes.items() if name.split()[-1] == "text"]
    images = 0 if method.keeps_images else image_work(clip, vectors, levels).kept * config.train.batch
    texts = sum(text_work(clip, size.classes, size.words, context).kept for context in contexts)
    return images + texts + look_memory(clip, 0 if method.keeps_images else config.train.batch)


def look_memory(clip: Clip, images: int) -> float:
    """What a look at so many images has in memory at once.

    In the middle of a block: two arrays of the hidden layer's size, and five of the tokens'.
    """
    tokens = token_bytes(clip) * images
    shape = getattr(clip.vision, "shape", None)
    return tokens * (5 + 2 * shape.hidden / shape.width if shape else 5)


def bytes_sent(config: RunConfig, method: Method, shapes: Mapping[str, Shape], size: RunSize) -> tuple[int, int]:
    """Bytes up and down of a run without priors, secure aggregation or prompts of other clients."""
    shared: Shared = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    who = 1 if method.pools else size.clients
    counts = np.zeros(size.classes, np.int64) if choose_labeler(config).cooperative else None
    checks = (0.0,) * (GUARD_SUMS if config.train.holdout and not config.privacy.noise_multiplier else 0)
    refreshes = math.ceil(config.rounds / config.labels.refresh_every)
    measured = sum((r + 1) % config.evaluation.every == 0 or r + 1 == config.rounds for r in range(config.rounds))
    taking_part = max(math.floor(who * config.sharing.participation), 1) * config.rounds
    first, again = Selected(0, 0, None), Selected(0, 0, 0)
    exchanges: list[tuple[int, Request, Reply]] = [
        (who * refreshes, Estimate(0, shared), Estimated(counts)),
        (who, Select(0, 0, counts, who), first),
        (who * (refreshes - 1), Select(0, 0, counts, who), again),
        (taking_part, Train(0, shared), Trained(shared, 0, 0.0, checks=checks)),
        (who * measured, Evaluate(0, shared), Evaluated(0, 0)),
    ]
    up = sum(times * payload_bytes(reply) for times, _, reply in exchanges)
    return up, sum(times * payload_bytes(request) for times, request, _ in exchanges)
