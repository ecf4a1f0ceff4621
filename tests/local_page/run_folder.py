"""A run's folder with labels, made by hand: no model, a few tiny image files."""

import json

import numpy as np
from PIL import Image

from fedcopl.config import RunConfig
from fedcopl.data.dataset import ImageSet
from fedcopl.data.images import ImageFiles
from fedcopl.rng import stream
from fedcopl.run.pseudo_labels import write_images, write_labels

CLASSES = ("cat", "dog", "small dog", "horse")
NASTY = [
    "<img src=x onerror=alert(1)>.png",
    '"><script>alert(2)<&script>.png',
    "=cmd|' &C calc'!A0.png",
    "a'b\"c`d.png",
    "new\nline.png",
    "\u202egnp.exe.png",
    "%2e%2e%2fetc%2fpasswd.png",
    "{{ 7 * 7 }}.png",
]


def log_probs(images, classes, seed=0):
    return np.log(stream(seed, "test beliefs").dirichlet(np.full(classes, 0.3), size=images).clip(1e-9))


def make_run(folder, names=None, classes=CLASSES, client="site", refreshes=(0, 2), images=12):
    """Write image files and what is believed about them; the log-probabilities of the last refresh."""
    names = names or [f"{number:03}.png" for number in range(images)]
    pictures = folder.parent / f"{folder.name}-images"
    pictures.mkdir(parents=True)
    for number, name in enumerate(names):
        Image.new("RGB", (16, 12), (20 * number % 255, 90, 160)).save(pictures / name, "PNG")
    folder.mkdir()
    (folder / "settings.toml").write_text(RunConfig(name="try", rounds=4).to_toml())
    held = ImageSet(ImageFiles([pictures / name for name in names]), names=names)
    write_images(folder, classes, held, {client: np.arange(len(names))})
    beliefs = [log_probs(len(names), len(classes), seed) for seed, _ in enumerate(refreshes)]
    for round, belief in zip(refreshes, beliefs, strict=True):
        write_labels(folder, round, {client: belief})
    return beliefs[-1] if beliefs else None


def round_line(number, **more):
    """A line of rounds.jsonl as a simulation writes it; rounds are counted from 0 there."""
    line = {
        "round": number,
        "refreshed": number % 2 == 0,
        "participants": 2,
        "examples": 40 + number,
        "loss": 1 / (number + 1),
        "bytes_up": 10,
        "bytes_down": 20,
        "kept_old_prompt": False,
        "dropped": {},
        "macro": 0.5 + number / 100,
        "weighted": 0.5,
        "global": None,
        "clients": [0.4, 0.6],
        "recall": None,
        "seconds": 3.0 * (number + 1),
    }
    return {**line, **more}


def write_rounds(folder, lines):
    temporary = folder / ".rounds.part"
    temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
    temporary.replace(folder / "rounds.jsonl")


def progress(rounds, names=("north", "south"), classes=("cat", "dog")):
    """progress.json of a simulation with two clients."""
    return {
        "classes": list(classes),
        "clients": [{"name": name, "train": 50} for name in names],
        "zero_shot": {"macro": 0.45},
        "rounds": rounds,
        "refreshes": [
            {"round": 0, "estimated": [[10, 4], [2, 8]], "allocated": [[7, 3], [3, 9]], "selected": [[6, 3], [3, 8]]}
        ],
    }
