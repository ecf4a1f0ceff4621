"""A run's folder with labels, made by hand: no model, a few tiny image files."""

import numpy as np
from PIL import Image

from fedcopl.config import RunConfig
from fedcopl.data.dataset import ImageSet
from fedcopl.data.images import FilePage, ImageList
from fedcopl.rng import stream
from fedcopl.run.pseudo_labels import write_image_list, write_labels

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
    """Write image files and what is predicted about them; the log-probabilities of the last refresh."""
    names = names or [f"{number:03}.png" for number in range(images)]
    pictures = folder.parent / f"{folder.name}-images"
    pictures.mkdir(parents=True)
    for number, name in enumerate(names):
        Image.new("RGB", (16, 12), (20 * number % 255, 90, 160)).save(pictures / name, "PNG")
    folder.mkdir()
    (folder / "settings.toml").write_text(RunConfig(name="try", rounds=4).to_toml())
    held = ImageSet(ImageList([FilePage(pictures / name) for name in names]), names=names)
    write_image_list(folder, classes, held, {client: np.arange(len(names))})
    predictions = [log_probs(len(names), len(classes), seed) for seed, _ in enumerate(refreshes)]
    for round, prediction in zip(refreshes, predictions, strict=True):
        write_labels(folder, round, {client: prediction})
    return predictions[-1] if predictions else None
