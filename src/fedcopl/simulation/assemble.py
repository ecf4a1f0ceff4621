"""Assembly of a simulation: clients with their images, the audit with the ground truth, centralised baselines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..algorithm.holdout import evenly_spaced
from ..algorithm.partition import Partition, counts_by_client
from ..clip.frozen_clip import Clip
from ..config import RunConfig
from ..data.cache import Prepared
from ..data.catalog import load_dataset
from ..data.dataset import Dataset
from ..data.label_files import corrections_of
from ..data.partitioning import check_partition, client_names, partition_dataset
from ..errors import ConfigError, DataError
from ..federation.client import Client
from ..federation.client_state import ClientState
from ..federation.learner import NO_TEST_SET, Prompts, TestSet
from ..federation.prior_estimation import NO_PRIOR, PriorState
from ..federation.server import ServerState, check_privacy_settings
from ..methods import choose_method
from ..methods.learner import ClipLearner, ClipTestSet
from ..plurals import counted
from ..rng import stream
from ..run.build import (
    BuiltModel,
    backbone_name,
    build_clip,
    build_images,
    build_model,
    expert_labels,
    first_state,
    known_class_prior,
)
from ..run.loop import complete_outcome
from ..run.previous_run import PreviousRun, adapt_previous_run, initial_states
from ..run.progress_reporter import ProgressReporter
from ..run.record import ClientRecord, InitialPromptEffect, Outcome
from .audit import Audit, Evaluator, sum_scores
from .worker_pool import WorkerContext, WorkerPool

_COMPARED_CLIENTS = 50  # evenly spaced clients whose mean `Simulation.initial_prompt_effect` returns


@dataclass(frozen=True)
class _PooledTestSet:
    """The test sets of all clients, scored as a single one."""

    test_sets: Mapping[str, TestSet]

    def score(self, prompts: Prompts | None, prior: PriorState = NO_PRIOR) -> tuple[int, int]:
        return sum_scores(test_set.score(prompts, prior) for test_set in self.test_sets.values())


class _GroundTruthLearner(ClipLearner):
    """A learner that trains on true labels: the supervised upper bound, never part of a federation."""

    def __init__(self, learner: ClipLearner, truth: NDArray[np.int64]):
        super().__init__(learner.model, learner.images, learner.start, learner.config, learner.number)
        self.extractor, self.truth = learner.extractor, truth

    def log_probabilities(self, prompts: Prompts | None) -> NDArray[np.float64]:
        """Return log p, (n, C), with probability 1 for the true class."""
        certain = np.full((len(self.truth), self.model.encoder.classes), -np.inf)
        certain[np.arange(len(self.truth)), self.truth] = 0.0
        return certain


@dataclass(frozen=True)
class Simulation:
    """The parts of a simulation that do not change during a run."""

    config: RunConfig
    dataset: Dataset
    notes: tuple[str, ...]  # for the user, on images and settings
    parts: Partition
    clients: Mapping[str, Client]
    audit: Audit
    server: ServerState  # before the first round
    learners: Sequence[ClipLearner]
    backbone: str  # name and fingerprint
    image_digest: str  # and number of the images
    states: Mapping[str, ClientState] = field(default_factory=dict)  # of clients that continue a previous run

    def initial_prompt_effect(self, pool: WorkerPool | None = None) -> InitialPromptEffect | None:
        """Return the mean effect of the initial prompts over clients; None if a previous run trained the prompts."""
        if self.config.previous_run:
            return None
        names, numbers = list(self.clients), evenly_spaced(len(self.clients), _COMPARED_CLIENTS)
        if pool is None:
            effects = [self.learners[number].extractor.effect_of(self.audit.start) for number in numbers]
        else:
            effects = [*pool.run({names[number]: (_prompt_effect, self.audit.start) for number in numbers}).values()]
        effects = [effect for effect in effects if effect[0]]  # of clients that have images
        if not effects:
            return None
        images, cosines, unchanged = zip(*effects, strict=True)
        return InitialPromptEffect(
            images=sum(images),
            cosine=None if None in cosines else float(np.average(cosines, weights=images)),
            unchanged=float(np.average(unchanged, weights=images)),
        )

    @property
    def device(self) -> str:
        """The kind of device that computes: cpu, cuda, ..."""
        return self.learners[0].model.encoder.device.type

    def complete(self, outcome: Outcome) -> Outcome:
        """Add settings, classes, model and number of skipped images to an outcome, and after a round the clients."""
        return complete_outcome(
            outcome,
            self.config,
            classes=self.dataset.classes,
            template=self.dataset.wording(self.config.model.template),
            backbone=self.backbone,
            images_left_out=len(self.dataset.skipped),
            clients=tuple(self._client_records(outcome)) if outcome.rounds else (),
        )

    def _client_records(self, outcome: Outcome) -> Iterator[ClientRecord]:
        centralised = self.audit.centralised
        before, after = outcome.zero_shot, outcome.final
        zero_shot, final = ((scores.weighted,) if centralised else scores.clients for scores in (before, after))
        test_sizes = [sum(map(len, self.parts.test))] if centralised else [*map(len, self.parts.test)]
        labels = self.dataset.train.labels
        true_counts = None if labels is None else counts_by_client(labels, self.parts.train, len(self.dataset.classes))
        for number, name in enumerate(self.clients):
            yield ClientRecord(
                name=name,
                train=len(self.parts.train[number]),
                test=test_sizes[number],
                zero_shot=zero_shot[number] if zero_shot else None,
                final=final[number] if final else None,
                true_counts=None if true_counts is None else tuple(true_counts[number].tolist()),
            )


def _prompt_effect(context: WorkerContext, client: str, prompts: Prompts) -> tuple[int, float | None, float]:
    return context.learners[client].extractor.effect_of(prompts)


def assemble(
    config: RunConfig,
    progress: ProgressReporter,
    dataset: Dataset | None = None,
    previous: PreviousRun | None = None,
    clip: Clip | None = None,
) -> Simulation:
    """Load images and model, and build the clients with their parts of the images.

    Args:
        dataset: The images; None: from the settings.
        previous: The finished run to continue.
        clip: The frozen CLIP; None: from the settings.

    Raises:
        ConfigError: Settings contradict each other or the previous run.
        DataError: The images cannot be used.
    """
    method = choose_method(config)
    check_privacy_settings(config, method.neighbours(), method.full_first_round)
    if method.centralised and config.is_private:
        raise ConfigError(
            f"method={config.method}: all images are in one place, so settings of privacy have no effect; remove them"
        )
    progress.preparing("listing the images")
    dataset = dataset or load_dataset(config.data)
    check_partition(dataset, config.data)
    if len(dataset.classes) < 2:
        names = ", ".join(map(repr, dataset.classes))
        raise DataError(f"{dataset.name}: there is only one class, {names}; write one class name per line")
    progress.preparing("loading the model")
    template = dataset.wording(config.model.template)
    built = build_model(config, clip or build_clip(config.model), dataset.classes, template)
    if previous is not None:
        previous = adapt_previous_run(previous, config, built.clip, dataset.classes, built.start)
    prepared = build_images(dataset, built.clip.preprocess, progress)
    parts = partition_dataset(prepared.dataset, config.data, config.seed)
    if method.centralised:
        parts = Partition((np.arange(len(prepared.dataset.train)),), parts.test)
    clients, test_sets, learners = _build_clients(built, prepared, parts)
    labels, classes = prepared.dataset.train.labels, len(dataset.classes)
    truth = None if labels is None else {name: labels[part] for name, part in zip(clients, parts.train, strict=True)}
    audit = Audit(truth, Evaluator(test_sets), built.start, config.evaluation.everywhere, classes, method.centralised)
    notes = [*prepared.notes, *_notes(config, parts)]
    server = first_state(config, built.start, classes, built.clip.feature_size)
    server = replace(server, class_prior=known_class_prior(config, dataset.classes))
    states: dict[str, ClientState] = {}
    if previous is not None:
        server = replace(server, shared=previous.shared)
        states = {name: state for name, state in initial_states(previous, built.start).items() if name in clients}
        continued = f"{counted(len(states), 'client')} with their own prompts, {len(clients) - len(states)} new"
        notes.append(f"continues {config.previous_run}: {continued}")
    backbone = backbone_name(config.model.backbone, built.clip)
    dataset, digest = prepared.dataset, prepared.digest
    return Simulation(config, dataset, tuple(notes), parts, clients, audit, server, learners, backbone, digest, states)


def _notes(config: RunConfig, parts: Partition) -> Iterator[str]:
    """Yield warnings about settings that the user may not have intended."""
    if config.model.backbone == "glyph-clip" and config.data.source != "digits":
        yield "glyph-clip reads printed characters only; for photographs set model.backbone, see docs/models.md"
    if empty := sum(not len(part) for part in parts.train):
        clients = counted(len(parts.train), "client")
        yield f"{empty} of {clients} have no image: there are more clients than images"


def _build_clients(
    built: BuiltModel, prepared: Prepared, parts: Partition
) -> tuple[dict[str, Client], dict[str, ClipTestSet], list[ClipLearner]]:
    """Return the clients and the test sets by name, and all learners; a centralised method has one client."""
    config, dataset = built.config, prepared.dataset
    train, test = built.images(prepared.train), built.images(prepared.test)
    names, truth = client_names(dataset, config.data), dataset.test.labels
    test_sets = {
        name: built.test_set(test.subset(part), truth[part])
        for name, part in zip(names, parts.test, strict=True)
        if truth is not None
    }
    learners = [built.learner(train.subset(part), number) for number, part in enumerate(parts.train)]
    if built.model.method.centralised:
        return {config.method: _central(built, learners[0], _PooledTestSet(test_sets), dataset)}, test_sets, learners
    labels, clients = expert_labels(config.data.corrections, dataset), {}
    for name, learner, part in zip(names, learners, parts.train, strict=True):
        # The seed of the noise is derived from that of the run, for repeatable simulations; a site has a random one.
        secret, test_set = stream(config.seed, "secret", learner.number).bytes(32), test_sets.get(name)
        corrections = corrections_of(part, labels)
        clients[name] = Client(learner, config, test_set or NO_TEST_SET, secret, corrections, repeatable=True)
    return clients, test_sets, learners


def _central(built: BuiltModel, learner: ClipLearner, test_set: _PooledTestSet, dataset: Dataset) -> Client:
    """Return the client that trains on all images: by pseudo labels, or by the true ones as the upper bound."""
    if learner.model.method.options.labels == "pseudo":
        return Client(learner, built.config, test_set)
    if dataset.train.labels is None:
        raise DataError(f"{dataset.name}: has no labels, which options.labels=truth needs")
    labels = built.config.labels.model_copy(update={"global_allocation": False})  # selects as many as it counts
    config = built.config.model_copy(update={"labels": labels})
    return Client(_GroundTruthLearner(learner, dataset.train.labels), config, test_set)
