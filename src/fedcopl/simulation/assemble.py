"""A simulated federation put together: clients with their images, the audit that knows the truth, central bounds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..algorithm.holdout import evenly_spaced
from ..algorithm.partition import Partition, counts_by_client
from ..algorithm.select import Corrections, Selection
from ..config import RunConfig
from ..data.cache import Prepared
from ..data.catalog import load_dataset
from ..data.dataset import Dataset, ImageSet
from ..data.label_files import corrections_of
from ..data.partitioning import check_partition, client_names, partition_dataset
from ..errors import ConfigError, DataError
from ..federation.client import Client
from ..federation.client_state import ClientState
from ..federation.learner import NO_TEST_SET, Learner, Prompts, TestSet
from ..federation.prior_estimation import NO_PRIOR, PriorState
from ..federation.server import ServerState, refuse_privacy
from ..methods import choose_method, run_title
from ..methods.base import Method
from ..methods.learner import ClipLearner, ClipTestSet
from ..methods.movement import CLIENTS, Movement, mean_movement, movement
from ..plurals import counted
from ..priors.posterior import LogitAdjustment
from ..rng import stream
from ..run.build import (
    BuiltModel,
    backbone_name,
    build_clip,
    build_images,
    build_model,
    expert_answers,
    known_class_prior,
)
from ..run.earlier import EarlierRun, begun_states, fitted
from ..run.loop import versions
from ..run.progress_reporter import ProgressReporter
from ..run.record import ClientRecord, Outcome
from .audit import Audit
from .evaluator import Evaluator
from .worker_pool import WorkerPool


@dataclass(frozen=True)
class PooledTestSet:
    """All clients' exams as one."""

    test_sets: Mapping[str, TestSet]

    def score(self, prompts: Prompts | None, prior: PriorState = NO_PRIOR) -> tuple[int, int]:
        scores = [test_set.score(prompts, prior) for test_set in self.test_sets.values()]
        return sum(correct for correct, _ in scores), sum(examples for _, examples in scores)


@dataclass(frozen=True)
class GroundTruthLearner:
    """A learner whose labels are the true ones: supervised learning, the upper bound. No federation contains this."""

    learner: Learner
    truth: NDArray[np.int64]
    classes: int

    def initial(self) -> Prompts:
        return self.learner.initial()

    def log_probabilities(self, prompts: Prompts | None) -> NDArray[np.float64]:
        certain = np.full((len(self.truth), self.classes), -np.inf)
        certain[np.arange(len(self.truth)), self.truth] = 0.0
        return certain

    def features(self) -> NDArray[np.float64]:
        return self.learner.features()

    def class_features(self) -> NDArray[np.float64]:
        return self.learner.class_features()

    def remember(self, selection: Selection) -> Prompts:
        return self.learner.remember(selection)

    def log_probabilities_of(self, prompts: Prompts, index: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.learner.log_probabilities_of(prompts, index)

    def train(
        self,
        prompts: Prompts,
        selection: Selection,
        round: int,
        lr_factor: float = 1.0,
        adjustment: LogitAdjustment | None = None,
    ) -> tuple[Prompts, float]:
        return self.learner.train(prompts, selection, round, lr_factor, adjustment)


def supervised(
    learner: Learner, truth: NDArray[np.int64], classes: int, config: RunConfig, test_set: TestSet
) -> Client:
    """One client that trains on all its images with their true labels."""
    every_image = config.labels.model_copy(update={"global_allocation": False})
    return Client(
        GroundTruthLearner(learner, truth, classes), config.model_copy(update={"labels": every_image}), test_set
    )


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
    learners: Sequence[ClipLearner]
    backbone: str  # name and fingerprint
    states: Mapping[str, ClientState] = field(default_factory=dict)  # of clients that go on from an earlier run

    def first_movement(self, pool: WorkerPool | None = None) -> Movement | None:
        """Return how far the first prompts change zero-shot CLIP's predictions; None if they were trained before."""
        if self.config.earlier:
            return None
        learners = dict(zip(self.clients, self.learners, strict=True))
        some = [list(learners)[number] for number in evenly_spaced(len(learners), CLIENTS)]
        if pool is None:
            moved = [movement(learners[name].side, self.audit.start) for name in some]
        else:
            moved = [*pool.run(dict.fromkeys(some, (_movement, self.audit.start))).values()]
        return mean_movement([one for one in moved if one is not None])

    @property
    def device(self) -> str:
        """The kind of device that computes: cpu, cuda, ..."""
        return self.learners[0].model.encoder.device.type

    @property
    def method(self) -> Method:
        return choose_method(self.config)

    def about(self, outcome: Outcome) -> Outcome:
        """The outcome with what a simulation knows of the run besides its rounds."""
        return replace(
            outcome,
            name=self.config.name,
            seed=self.config.seed,
            method=run_title(self.config),
            trains=self.method.trains,
            pools=self.method.pools,
            shared=tuple(self.server.shared),
            averaged=self.method.averaged(),
            classes=self.dataset.classes,
            template=self.dataset.wording(self.config.model.template),
            backbone=self.backbone,
            images_left_out=len(self.dataset.skipped),
            clients=tuple(self._client_records(outcome)) if outcome.rounds else (),
            settings=self.config.model_dump(),
            versions=versions(),
        )

    def _client_records(self, outcome: Outcome) -> Iterator[ClientRecord]:
        pools = self.audit.pools
        before, after = outcome.zero_shot, outcome.final
        zero_shot, final = ((one.weighted,) if pools else one.clients for one in (before, after))
        tested = [sum(map(len, self.parts.test))] if pools else [*map(len, self.parts.test)]
        labels = self.dataset.train.labels
        true = None if labels is None else counts_by_client(labels, self.parts.train, len(self.dataset.classes))
        for number, name in enumerate(self.clients):
            yield ClientRecord(
                name=name,
                train=len(self.parts.train[number]),
                test=tested[number],
                zero_shot=zero_shot[number] if zero_shot else None,
                final=final[number] if final else None,
                true_counts=None if true is None else tuple(true[number].tolist()),
            )


class HasLearners(Protocol):
    """The part of a worker's context that has the clients' models."""

    @property
    def learners(self) -> Mapping[str, ClipLearner]:
        """The clients' models by name."""
        ...


def _movement(context: HasLearners, client: str, prompts: Prompts) -> Movement | None:
    return movement(context.learners[client].side, prompts)


def assemble(
    config: RunConfig, watcher: ProgressReporter, dataset: Dataset | None = None, earlier: EarlierRun | None = None
) -> Simulation:
    """Load the images, unless they are given, and the model, and give every client its part.

    Who was in an earlier run begins with what it had there, everybody else as in any run.
    """
    method = choose_method(config)
    refuse_privacy(config, method.neighbours())
    if method.pools and config.is_private:
        raise ConfigError(
            f"method={config.method}: all images are in one place, so the settings of privacy protect nobody"
        )
    watcher.preparing("listing the images")
    dataset = dataset or load_dataset(config.data)
    check_partition(dataset, config.data)
    _refuse_one_class(dataset)
    watcher.preparing("loading the model")
    template = dataset.wording(config.model.template)
    built = build_model(config, build_clip(config.model), dataset.classes, template)
    left = None if earlier is None else fitted(earlier, config, built.clip, dataset.classes, built.start)
    prepared = build_images(dataset, built.clip.preprocess, watcher)
    parts = partition_dataset(prepared.dataset, config.data, config.seed)
    if method.pools:
        parts = Partition((np.arange(len(prepared.dataset.train)),), parts.test)
    clients, test_sets, learners = _clients(built, prepared, parts)
    truth = _truth(prepared.dataset.train, parts, list(clients))
    everywhere, classes = config.evaluation.everywhere, len(dataset.classes)
    audit = Audit(truth, Evaluator(test_sets), built.start, everywhere, classes, method.pools)
    notes = (*prepared.notes, *_notes(config, parts))
    server = replace(built.server(), class_prior=known_class_prior(config, dataset.classes))
    backbone = backbone_name(config.model.backbone, built.clip)
    whole = Simulation(config, prepared.dataset, notes, parts, clients, audit, server, learners, backbone)
    return whole if left is None else _going_on(whole, left)


def _going_on(simulation: Simulation, left: EarlierRun) -> Simulation:
    """The same, from what an earlier run left behind."""
    states = begun_states(left, simulation.audit.start)
    known = {name: states[name] for name in simulation.clients if name in states}
    new = len(simulation.clients) - len(known)
    note = (
        f"goes on from {simulation.config.earlier}: {counted(len(known), 'client')} with their own prompts, {new} new"
    )
    server = replace(simulation.server, shared=left.shared)
    return replace(simulation, server=server, states=known, notes=(*simulation.notes, note))


def _refuse_one_class(dataset: Dataset) -> None:
    if len(dataset.classes) < 2:
        only = ", ".join(map(repr, dataset.classes))
        raise DataError(f"{dataset.name}: there is only one class, {only}; write one class name a line")


def _notes(config: RunConfig, parts: Partition) -> Iterator[str]:
    """What a user may not have meant."""
    if config.model.backbone == "glyph-clip" and config.data.source != "digits":
        yield "glyph-clip knows printed characters only; for photographs set model.backbone, see docs/models.md"
    empty = sum(not len(part) for part in parts.train)
    if empty:
        clients = counted(len(parts.train), "client")
        yield f"{empty} of {clients} hold no image: there are more clients than images for them"


def _clients(
    built: BuiltModel, prepared: Prepared, parts: Partition
) -> tuple[dict[str, Client], dict[str, ClipTestSet], list[ClipLearner]]:
    config, dataset = built.config, prepared.dataset
    train, test = built.images(prepared.train), built.images(prepared.test)
    names, truth = client_names(dataset, config.data), dataset.test.labels
    test_sets = {
        name: built.test_set(test.part(part), truth[part])
        for name, part in zip(names, parts.test, strict=True)
        if truth is not None
    }
    learners = [built.learner(train.part(part), number) for number, part in enumerate(parts.train)]
    if built.model.method.pools:
        return {config.method: _central(built, learners[0], PooledTestSet(test_sets), dataset)}, test_sets, learners
    said = expert_answers(config.data.corrections, dataset)
    clients = {
        name: _client(built, learner, test_sets.get(name), corrections_of(part, said))
        for name, learner, part in zip(names, learners, parts.train, strict=True)
    }
    return clients, test_sets, learners


def _client(built: BuiltModel, learner: ClipLearner, test_set: ClipTestSet | None, said: Corrections) -> Client:
    # Whoever knows the seed knows the noise: that makes a simulation repeatable, and a real site must do otherwise.
    secret = stream(built.config.seed, "secret", learner.number).bytes(32)
    return replace(built.client(learner, test_set or NO_TEST_SET, secret, said), repeatable=True)


def _central(built: BuiltModel, learner: ClipLearner, test_set: PooledTestSet, dataset: Dataset) -> Client:
    if learner.model.method.options.labels == "pseudo":
        return built.client(learner, test_set)
    if dataset.train.labels is None:
        raise DataError(f"{dataset.name}: has no labels, so options.labels=truth cannot be done")
    return supervised(learner, dataset.train.labels, len(dataset.classes), built.config, test_set)


def _truth(train: ImageSet, parts: Partition, names: Sequence[str]) -> dict[str, NDArray[np.int64]] | None:
    labels = train.labels
    if labels is None:
        return None
    return {name: labels[part] for name, part in zip(names, parts.train, strict=True)}
