"""The same images in ten and in a thousand clients: time and memory of a round."""

import json
import subprocess
import sys
from collections.abc import Iterator

from .measure import Line

# Training images are dealt out evenly; each is met once per epoch, whoever holds it.
ONE_ROUND = """
import json, resource, sys, time
import numpy as np, torch
from fedcopl.config import RunConfig
from fedcopl.federation.client import Client
from fedcopl.simulation.simulate import LocalClients
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.clip.device import Arithmetic, keep_freed_memory
from fedcopl.clip.encoder import Encoder
from fedcopl.clip.image_tokens import ClientImages, TokenStore
from fedcopl.methods.learner import ClipLearner
from fedcopl.methods.prompted_model import PromptedModel
from fedcopl.methods import choose_method
from fedcopl.federation.server import ServerState, play_round

keep_freed_memory()
clients, images = int(sys.argv[1]), 64_000
config = RunConfig.from_mapping({"rounds": 1, "train": {"epochs": 1}}, "benchmark")
clip = load_clip("glyph-clip")
classes = [f"class {i}" for i in range(10)]
encoder = Encoder(clip, classes, "a photo of a {}", Arithmetic(torch.device("cpu")))
store = TokenStore.of(clip, np.random.default_rng(0).integers(0, 256, (images, 3, 32, 32), np.uint8), 8e9)
method = choose_method(config)
model, start = PromptedModel(method, encoder), method.start(clip, encoder.classes)
parts = np.array_split(np.arange(images), clients)
sites = {
    f"client-{n:04}": Client(ClipLearner(model, ClientImages(store, part), start, config, n), config)
    for n, part in enumerate(parts)
}
began = time.perf_counter()
state = ServerState(0, {"visual": start["visual"]}, len(classes))
_, report = play_round(config, LocalClients(sites), state)
took = time.perf_counter() - began
print(json.dumps({"seconds": took / report.examples, "examples": report.examples,
                  "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def simulated_clients() -> Iterator[Line]:
    few, many = (_measured(clients) for clients in (10, 1000))
    detail = f"{1e6 * few['seconds']:.0f} and {1e6 * many['seconds']:.0f} us an image trained on"
    yield Line("time, clients 10 -> 1,000", "10 clients", many["seconds"] / few["seconds"], 1.15, True, detail)
    detail = f"{few['peak'] / 1024:.0f} and {many['peak'] / 1024:.0f} MiB"
    yield Line("peak memory, clients 10 -> 1,000", "10 clients", many["peak"] / few["peak"], 1.15, True, detail)


def _measured(clients: int) -> dict[str, float]:
    out = subprocess.run([sys.executable, "-c", ONE_ROUND, str(clients)], check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(out.stdout)
    return answer
