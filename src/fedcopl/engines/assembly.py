"""Putting a simulated federation together: images, model, who holds what."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..client import NO_EXAM, Client, Exam
from ..config import Data, RunConfig
from ..core import partition
from ..core.partition import Partition
from ..data.cache import PixelCache
from ..data.catalog import load_dataset
from ..data.corrections import read_corrections, told_of
from ..data.dataset import Dataset, ImageSet
from ..data.natural import natural_partition
from ..data.prepare import Prepared, prepare
from ..errors import ConfigError, DataError
from ..model.clip import Clip, load_clip
from ..model.device import choose_arithmetic, keep_freed_memory, use_threads
from ..model.encoder import Encoder
from ..model.images import ClientImages, TokenStore
from ..model.learner import ClipExam, ClipLearner
from ..model.methods import choose_method
from ..model.methods.base import Method
from ..model.movement import Movement, movement_of_all
from ..model.prompted import PromptedModel, Prompts
from ..protocol import ServerState, refuse_privacy
from ..rng import stream
from .audit import Audit
from .central import CENTRAL, PooledExam, supervised
from .watcher import Watcher

GIGABYTE = 10**9


@dataclass(frozen=True)
class Simulation:
    """Everything that stays the same during a run."""

    config: RunConfig
    dataset: Dataset
    notes: tuple[str, ...]  # what the user should know about the images
    parts: Partition
    clients: Mapping[str, Client]
    audit: Audit
    server: ServerState  # where the server begins
    learners: Sequence[ClipLearner] = ()

    def first_movement(self) -> Movement | None:
        """How far the first prompts, untrained, take the clients' models from plain CLIP."""
        return movement_of_all([(learner.model, learner.images) for learner in self.learners], self.audit.start)


def assemble(config: RunConfig, watcher: Watcher, dataset: Dataset | None = None) -> Simulation:
    """Load the images, unless they are given, and the model, and give every client its part."""
    method = choose_method(config)
    refuse_privacy(config, method.neighbours())
    if config.method == CENTRAL and config.is_private:
        raise ConfigError(f"method={CENTRAL}: all images are in one place, so the settings of privacy protect nobody")
    watcher.preparing("listing the images")
    dataset = dataset or load_dataset(config.data)
    refuse_partition(dataset, config.data)
    if len(dataset.classes) < 2:
        only = ", ".join(map(repr, dataset.classes))
        raise DataError(f"{dataset.name}: there is only one class, {only}; write one class name a line")
    watcher.preparing("loading the model")
    use_threads(config.model.threads)
    keep_freed_memory()
    arithmetic = choose_arithmetic(config.model.device, config.model.precision)
    activation = None if config.model.activation == "auto" else config.model.activation
    clip = load_clip(config.model.backbone, activation=activation)
    encoder = Encoder(clip, dataset.classes, config.model.template or dataset.template, arithmetic)
    encoder.refuse_long_names(config.model.text_prompts)
    start = method.start(clip)
    prepared = _prepare(dataset, clip, watcher)
    parts = share_out(prepared.dataset, config.data, config.seed)
    if config.method == CENTRAL:
        parts = Partition((np.arange(len(prepared.dataset.train)),), parts.test)
    clients, exams, learners = _clients(config, PromptedModel(method, encoder), prepared, parts, start)
    truth = _truth(prepared.dataset.train, parts, list(clients))
    everywhere = config.evaluation.everywhere
    audit = Audit(truth, exams, start, everywhere, len(dataset.classes), config.method == CENTRAL)
    server = first_state(method, start, len(dataset.classes))
    notes = (*prepared.notes, *_notes(config, parts))
    return Simulation(config, prepared.dataset, notes, parts, clients, audit, server, learners)


def first_state(method: Method, start: Prompts, classes: int) -> ServerState:
    """Where the server begins: the prompts that are averaged, and what else the method asks of it."""
    shared = {name: start[name] for name in method.shared()}
    return ServerState(0, shared, classes, everyone_first=method.everyone_first, neighbours=method.neighbours())


def _notes(config: RunConfig, parts: Partition) -> Iterator[str]:
    """What a user may not have meant."""
    if config.model.backbone == "glyph-clip" and config.data.source != "digits":
        yield "glyph-clip knows printed characters only; for photographs set model.backbone, see docs/models.md"
    empty = sum(not len(part) for part in parts.train)
    if empty:
        yield f"{empty} of {len(parts.train)} clients hold no image: there are more clients than images for them"


def _prepare(dataset: Dataset, clip: Clip, watcher: Watcher) -> Prepared:
    """Every image decoded and cut to the model's size, once; what is broken is left out and named."""
    watcher.preparing("preparing the images")
    return prepare(dataset, clip.preprocess.cut, clip.preprocess.key, PixelCache(), watcher.prepared)


def _clients(
    config: RunConfig, model: PromptedModel, prepared: Prepared, parts: Partition, start: Prompts
) -> tuple[dict[str, Client], dict[str, ClipExam], list[ClipLearner]]:
    train, test = (
        TokenStore.of(model.encoder.clip, pixels, config.model.memory * GIGABYTE)
        for pixels in (prepared.train, prepared.test)
    )
    names = client_names(prepared.dataset, config.data)
    truth = prepared.dataset.test.labels
    exams = {
        name: ClipExam(model, ClientImages(test, part), truth[part])
        for name, part in zip(names, parts.test, strict=True)
        if truth is not None
    }
    learners = [
        ClipLearner(model, ClientImages(train, part), start, config, number) for number, part in enumerate(parts.train)
    ]
    if config.method == CENTRAL:
        return {CENTRAL: _central(config, learners[0], PooledExam(exams), prepared.dataset)}, exams, learners
    # Whoever knows the seed knows the noise: that makes a simulation repeatable, and a real site must do otherwise.
    told = _told(config, prepared.dataset)
    clients = {
        name: Client(
            learner,
            config,
            exams.get(name, NO_EXAM),
            stream(config.seed, "secret", learner.number).bytes(32),
            told_of(part, told),
            repeatable=True,
        )
        for name, learner, part in zip(names, learners, parts.train, strict=True)
    }
    return clients, exams, learners


def _told(config: RunConfig, dataset: Dataset) -> Mapping[int, int]:
    """What an expert said about some images, where it is to be used; of nothing it was said without a file."""
    if not config.data.corrections:
        return {}
    told = read_corrections(Path(config.data.corrections), dataset.train, dataset.classes)
    if not told:
        raise DataError(f"{config.data.corrections}: says nothing about any of these images")
    return told


def _central(config: RunConfig, learner: ClipLearner, exam: Exam, dataset: Dataset) -> Client:
    if learner.model.method.options.labels == "pseudo":
        return Client(learner, config, exam)
    if dataset.train.labels is None:
        raise DataError(f"{dataset.name}: has no labels, so options.labels=truth cannot be done")
    return supervised(learner, dataset.train.labels, len(dataset.classes), config, exam)


def client_names(dataset: Dataset, data: Data) -> Sequence[str]:
    """As the data set calls them, or client-0 ... client-9, padded so that they sort as they count."""
    if data.partition == "natural":
        return dataset.clients
    digits = len(str(data.clients - 1))
    return [f"client-{number:0{digits}}" for number in range(data.clients)]


def share_out(dataset: Dataset, data: Data, seed: int) -> Partition:
    """Who holds what. The truth is used to make the skew of the simulation, and by nobody else."""
    refuse_partition(dataset, data)
    if data.partition == "natural":
        return natural_partition(dataset)
    labelled = dataset.train.labels is not None
    classes = len(dataset.classes) if labelled else 1
    train, test = (_labels_or_zeros(part, labelled) for part in (dataset.train, dataset.test))
    try:
        return _partition(train, test, classes, data, stream(seed, "partition"))
    except ValueError as error:
        raise DataError(f"{dataset.name}: cannot be shared out among {data.clients} clients: {error}") from error


def refuse_partition(dataset: Dataset, data: Data) -> None:
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


def _truth(train: ImageSet, parts: Partition, names: Sequence[str]) -> dict[str, NDArray[np.int64]] | None:
    labels = train.labels
    if labels is None:
        return None
    return {name: labels[part] for name, part in zip(names, parts.train, strict=True)}
