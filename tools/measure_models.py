"""Measure memory and time of known models with random weights, and write src/fedcopl/clip/measured_models.json.

.venv/bin/python tools/measure_models.py [NAME ...]

Checkpoints have the publisher's architecture and layout (`random_checkpoint.py`), which also tests the loader. Each
model runs in its own process, on one core in fp32. Times are CPU times, because the machine may be busy.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fedcopl.clip.frozen_clip import load_clip
from fedcopl.clip.known_models import KNOWN_MODELS, MEASURED, KnownModel, known_model

PIXELS = 8 * 224 * 224  # of all images together, so that larger images are fewer


def measure(path: Path) -> dict[str, float]:
    """Load and run a model in this process; return its parameters, peak memory in GB and seconds per 1,000 images."""
    torch.set_num_threads(1)
    clip = load_clip(path)
    count = max(PIXELS // clip.image_size**2, 1)
    pixels = torch.from_numpy(np.random.default_rng(0).normal(size=(count, 3, clip.image_size, clip.image_size)))
    with torch.inference_mode():
        clip.encode_image(pixels[:1].float())
        started = time.process_time()
        for image in pixels.float().split(4):
            clip.encode_image(image)
        seconds = time.process_time() - started
    return {
        "parameters": sum(weight.numel() for weight in clip.state_dict().values()),
        "memory": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "seconds": round(1000 * seconds / count, 1),
        "images": count,
    }


def measure_in_new_process(model: KnownModel) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        from random_checkpoint import checkpoint  # imports transformers

        path = checkpoint(model, Path(folder))
        process = subprocess.run(
            [sys.executable, __file__, "--measure", path], capture_output=True, text=True, check=True
        )
    values: dict[str, float] = json.loads(process.stdout)
    return values


def main(names: list[str]) -> None:
    if names[:1] == ["--measure"]:
        print(json.dumps(measure(Path(names[1]))))
        return
    for name in names or [model.name for model in KNOWN_MODELS if model.loads]:
        known = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
        known[name] = measure_in_new_process(known_model(name))
        MEASURED.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
        print(name, known[name])


if __name__ == "__main__":
    main(sys.argv[1:])
