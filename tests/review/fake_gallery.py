"""A gallery of any size that keeps count of what is opened."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from fedcopl.data.decoding import BadImage
from fedcopl.review.images import _LabelHistory
from fedcopl.rng import stream
from fedcopl.run.pseudo_labels import PseudoLabels


class CountedNames(Sequence):
    """The names of n images, made when asked for; `asked` holds the numbers."""

    def __init__(self, images):
        self.images, self.asked = images, []

    def __len__(self):
        return self.images

    def __getitem__(self, number):
        if not 0 <= number < self.images:
            raise IndexError
        self.asked.append(int(number))
        return f"{number:06}.png"


class FakeGallery:
    """Flat colours as images; what is predicted is random, or given."""

    def __init__(self, images=10, classes=("cat", "dog", "small dog", "horse"), label=None, broken=(), refreshes=2):
        self.client, self.classes, self.names = "site", classes, CountedNames(images)
        self.opened, self.broken = [], set(broken)
        self.predictions = _LabelHistory.of([self._labels(round, images, label) for round in range(refreshes)])

    def _labels(self, round, images, label):
        rng = stream(round, "fake gallery")
        first = rng.integers(len(self.classes), size=images) if label is None else np.asarray(label)
        order = (first[:, None] + np.arange(len(self.classes))) % len(self.classes)
        shares = np.sort(rng.dirichlet(np.ones(len(self.classes)), size=images), axis=1)[:, ::-1]
        return PseudoLabels(round, order.astype(np.int32), np.log(shares).astype(np.float32))

    def image(self, number):
        self.opened.append(number)
        if number in self.broken:
            raise BadImage("damaged")
        return Image.new("RGB", (200, 100), (number % 255, 80, 80))

    def digest(self, number):
        return f"digest of {number}"

    def file(self, number):
        return None
