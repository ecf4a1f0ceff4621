"""Who holds which images: as the data set says, or dealt out for a simulation."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..algorithm import partition
from ..algorithm.partition import Partition
from ..config import Data
from ..errors import DataError
from ..plurals import counted
from ..rng import stream
from .dataset import Dataset, ImageSet


def client_names(dataset: Dataset, data: Data) -> Sequence[str]:
    """As the data set calls them, or client-0 ... client-9, padded so that they sort as they count."""
    if data.partition == "natural":
        return dataset.clients
    digits = len(str(data.clients - 1))
    return [f"client-{number:0{digits}}" for number in range(data.clients)]


def partition_dataset(dataset: Dataset, data: Data, seed: int) -> Partition:
    """Who holds what. The truth is used to make the skew of the simulation, and by nobody else."""
    check_partition(dataset, data)
    if data.partition == "natural":
        return natural_partition(dataset)
    labelled = dataset.train.labels is not None
    classes = len(dataset.classes) if labelled else 1
    train, test = (_labels_or_zeros(part, labelled) for part in (dataset.train, dataset.test))
    try:
        return _partition(train, test, classes, data, stream(seed, "partition"))
    except ValueError as error:
        raise DataError(
            f"{dataset.name}: cannot be shared out among {counted(data.clients, 'client')}: {error}"
        ) from error


def check_partition(dataset: Dataset, data: Data) -> None:
    """Say that the images cannot be shared out as asked, before the work of decoding them."""
    if data.partition == "natural":
        natural_partition(dataset)
    elif dataset.train.labels is None and data.partition != "iid":
        raise DataError(
            f"{dataset.name}: has no labels, so it cannot be shared out by class; "
            "use data.partition=iid, or say who holds what and use data.partition=natural"
        )


def _labels_or_zeros(images: ImageSet, labelled: bool) -> NDArray[np.int64]:
    return images.labels if labelled and images.labels is not None else np.zeros(len(images), np.int64)


def _partition(
    train: NDArray[np.int64], test: NDArray[np.int64], classes: int, data: Data, rng: np.random.Generator
) -> Partition:
    if data.partition == "iid":
        return partition.iid(train, test, classes, data.clients, rng)
    if data.partition == "quantity":
        per_client = data.classes_per_client or None
        return partition.quantity(train, test, classes, data.clients, rng, classes_per_client=per_client)
    return partition.dirichlet(train, test, classes, data.clients, rng, beta=data.beta, min_train=data.min_train)


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
