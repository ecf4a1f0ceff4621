"""Partitioning a data set over clients: natural, or simulated with label skew."""

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
    """Return the client names of a natural partition, otherwise client-0, client-1, ..., zero-padded."""
    if data.partition == "natural":
        return dataset.clients
    digits = len(str(data.clients - 1))
    return [f"client-{number:0{digits}}" for number in range(data.clients)]


def partition_dataset(dataset: Dataset, data: Data, seed: int) -> Partition:
    """Partition the images over clients; true labels are only used for the label skew of a simulation."""
    check_partition(dataset, data)
    if data.partition == "natural":
        count = len(dataset.clients)
        return Partition(_parts(dataset.train, count), _parts(dataset.test, count))
    labelled = dataset.train.labels is not None
    classes = len(dataset.classes) if labelled else 1  # without labels, all images count as one class
    train, test = (
        part.labels if labelled and part.labels is not None else np.zeros(len(part), np.int64)
        for part in (dataset.train, dataset.test)
    )
    rng = stream(seed, "partition")
    try:
        if data.partition == "iid":
            return partition.iid(train, test, classes, data.clients, rng)
        if data.partition == "quantity":
            per_client = data.classes_per_client or None
            return partition.quantity(train, test, classes, data.clients, rng, classes_per_client=per_client)
        return partition.dirichlet(train, test, classes, data.clients, rng, beta=data.beta, min_train=data.min_train)
    except ValueError as error:
        clients = counted(data.clients, "client")
        raise DataError(f"{dataset.name}: cannot be partitioned over {clients}: {error}") from error


def check_partition(dataset: Dataset, data: Data) -> None:
    """Raise DataError if the images cannot be partitioned as configured."""
    if data.partition == "natural":
        if not dataset.clients:
            raise DataError(
                f"{dataset.name}: does not name the clients; a natural partition needs the column client in a "
                "manifest, or folders clients/<client>/"
            )
    elif dataset.train.labels is None and data.partition != "iid":
        raise DataError(
            f"{dataset.name}: has no labels, so it cannot be partitioned by class; "
            "use data.partition=iid, or name each image's client and use data.partition=natural"
        )


def _parts(images: ImageSet, count: int) -> tuple[NDArray[np.int64], ...]:
    """Return the positions of the images of each client."""
    clients = np.zeros(0, np.int64) if images.clients is None else images.clients
    return tuple(np.flatnonzero(clients == client) for client in range(count))
