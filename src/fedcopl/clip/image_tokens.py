"""A client's images as the tower reads them: tokens before the first block."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .frozen_clip import Clip

ENCODE_BATCH = 256  # fixed, not a setting: the last bits of a matrix product may depend on its shape
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class TokenStore:
    """Images of a data set, embedded once and kept, or embedded from their pixels each time they are asked for.

    Tokens depend on no prompt, so keeping them saves work: little for a vision transformer (one layer of patches), a
    lot for a ResNet. What does not fit into memory stays as pixels in the cache on disk.
    """

    clip: Clip
    pixels: NDArray[np.uint8]  # (n, 3, side, side)
    memory: float = math.inf  # bytes that may be used to keep what is computed of these images
    kept: Tensor | None = None

    @classmethod
    def of(cls, clip: Clip, pixels: NDArray[np.uint8], memory: float) -> "TokenStore":
        """Keep the tokens if they take at most `memory` bytes."""
        store = cls(clip, pixels, memory)
        if not len(pixels) or store[np.arange(1)].nbytes * len(pixels) > memory:
            return store
        return replace(store, kept=torch.cat([store[rows] for rows in _in_batches(np.arange(len(pixels)))]))

    @torch.no_grad()
    def __getitem__(self, rows: Rows) -> Tensor:
        """Tokens (n, N, width) on the CPU."""
        if self.kept is not None:
            return self.kept[torch.from_numpy(rows)]
        # Few on a CPU: an image has the same bits in whatever company it is embedded.
        at_once = self.clip.vision.embedded_alike if self.clip.text.positions.device.type == "cpu" else ENCODE_BATCH
        groups = (rows[start : start + at_once] for start in range(0, len(rows), at_once))
        return torch.cat([self._embedded(group) for group in groups])

    def _embedded(self, rows: Rows) -> Tensor:
        pixels = torch.from_numpy(self.clip.preprocess.scale(self.pixels[rows]))
        return self.clip.vision.embed(pixels.to(self.clip.text.positions.device)).cpu()


@dataclass(frozen=True)
class ClientImages:
    """One client's part of a store. Nothing is copied until it is used."""

    store: TokenStore
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, rows: Rows) -> "ClientImages":
        """Some of these images, by their numbers among them."""
        return ClientImages(self.store, self.rows[rows])

    @property
    def memory(self) -> float:
        """This part's share of the memory for what is computed of the images."""
        return self.store.memory * len(self.rows) / max(len(self.store.pixels), 1)

    def tokens(self, index: Rows) -> Tensor:
        """Tokens of some of the client's images, counted within the client."""
        return self.store[self.rows[index]]

    def batches(self) -> Iterator[Tensor]:
        """Tokens of all of them, in batches of one fixed size."""
        return (self.store[rows] for rows in _in_batches(self.rows))


def _in_batches(rows: Rows) -> Iterator[Rows]:
    return (rows[start : start + ENCODE_BATCH] for start in range(0, len(rows), ENCODE_BATCH))
