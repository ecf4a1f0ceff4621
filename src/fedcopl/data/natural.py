"""The natural partition: every client holds what the data set says it holds."""

import numpy as np
from numpy.typing import NDArray

from ..algorithm.partition import Partition
from ..errors import DataError
from .dataset import Dataset, ImageSet


def natural_partition(dataset: Dataset) -> Partition:
    """The parts of `dataset.clients`, in their order. A client may lack test images, or all of its images."""
    if not dataset.clients:
        raise DataError(
            f"{dataset.name}: does not say who holds what; a natural partition needs the column client in a manifest, "
            "or folders clients/<client>/"
        )
    count = len(dataset.clients)
    return Partition(_parts(dataset.train, count), _parts(dataset.test, count))


def _parts(images: ImageSet, count: int) -> tuple[NDArray[np.int64], ...]:
    owners = np.zeros(0, np.int64) if images.clients is None else images.clients
    return tuple(np.flatnonzero(owners == client) for client in range(count))
