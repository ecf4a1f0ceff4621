"""Label and train with a random model of given sizes; prints what memory that took, and what the model of cost says.

Beyond the program itself: how much of torch's own files is in memory is the system's business, and changes by the hour.
"""

import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from clip.test_tower_work import small_clip
from fedcopl.algorithm.select import Selection
from fedcopl.clip.blocks import TowerShape
from fedcopl.clip.device import Arithmetic, keep_freed_memory
from fedcopl.clip.encoder import Encoder
from fedcopl.clip.image_tokens import ClientImages, TokenStore
from fedcopl.clip.tower_work import words_of
from fedcopl.config import RunConfig
from fedcopl.methods import choose_method
from fedcopl.methods.learner import ClipLearner
from fedcopl.methods.prompted_model import PromptedModel
from fedcopl.run.cost_model import PROGRAM, RunSize, memory_of


def taken() -> int:
    """Bytes of this process that are in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def watch() -> None:
    while True:
        most[0] = max(most[0], taken())
        time.sleep(0.002)


before = taken()
most = [before]
threading.Thread(target=watch, daemon=True).start()

width, depth, heads, hidden, patch, side, images, classes, batch = map(int, sys.argv[1:])
keep_freed_memory()
config = RunConfig.from_mapping({"train": {"epochs": 1, "batch": batch}, "model": {"start": "random"}}, "measured")
clip = small_clip(TowerShape(width, depth, heads, hidden), patch, side)
names = [f"class number {number}" for number in range(classes)]
method = choose_method(config)
encoder = Encoder(clip, names, "a photo of a {}", Arithmetic(torch.device("cpu")))
pixels = np.random.default_rng(0).integers(0, 256, (images, 3, side, side), np.uint8)
own = ClientImages(TokenStore.of(clip, pixels, 4e9), np.arange(images))
learner = ClipLearner(PromptedModel(method, encoder), own, method.start(clip, classes), config, 0)
learner.log_probabilities(None)
learner.train(learner.initial(), Selection(np.arange(2 * batch), np.arange(2 * batch) % classes), 0)
said = memory_of(config, clip, RunSize(images, 0, 1, classes, words_of(clip, names)))
print(most[0] - before - pixels.nbytes, said - PROGRAM)  # pixels are mapped from the cache in a run
