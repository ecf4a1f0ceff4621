"""Ground truth never enters the unsupervised path: a run with other truths is the same run, to the last bit.

A leak, whatever its name and its way, would make something of the run depend on the truth. So whole runs are run_all
three times: with the true labels, with wrong ones, with none. All that clients keep, say and are calls must be the
same; only the scores of test sets may differ. Six test images change scores little, so runs are also
run_all with test sets that report arbitrary scores.
"""

import gc
from collections import Counter
from dataclasses import fields, replace
from functools import cache
from types import FunctionType, MethodType, ModuleType

import numpy as np
import pytest
import torch

from fakes import run
from fedcopl.config import AS_PUBLISHED, RunConfig, override
from fedcopl.data.catalog import load_digits
from fedcopl.data.dataset import Dataset, ImageSet
from fedcopl.data.partitioning import partition_dataset
from fedcopl.federation.client_state import state_tensors
from fedcopl.federation.learner import NO_PRIOR
from fedcopl.messages import Evaluate, Evaluated, digest
from fedcopl.methods import METHODS, choose_method, with_effective_rounds
from fedcopl.methods.learner import ClipTestSet
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation import assemble as assembly
from fedcopl.simulation.assemble import Simulation, _GroundTruthLearner, _PooledTestSet, assemble
from fedcopl.simulation.audit import Audit
from fedcopl.simulation.simulate import LocalTransport, simulate

QUICK = ["rounds=2", "refresh_every=1", "epochs=1", "threads=1", "partition=natural"]
PUBLISHED = [f"{name}={str(value).lower()}" for name, value in AS_PUBLISHED.items()]
TRAIN, TEST = 24, 6
TRUTHS = ("true", "wrong", "none")


@cache
def dataset_with(truth: str) -> Dataset:
    """Two sites with digits of their own, not partitioned by class; `truth`: their labels."""
    digits = load_digits()
    return replace(
        digits,
        train=labelled(digits.train, TRAIN, truth),
        test=labelled(digits.test, TEST, truth),
        clients=("north", "south"),
    )


def labelled(images: ImageSet, count: int, truth: str) -> ImageSet:
    labels = images.labels[: 2 * count]
    exchanged = {"true": labels, "wrong": (labels[::-1] * 7 + 3) % 10, "none": None}[truth]
    return ImageSet(images.images[: 2 * count], exchanged, clients=np.arange(2 * count) % 2)


def config_of(*pairs):
    return with_effective_rounds(RunConfig.from_mapping(override({}, [*QUICK, *pairs]), "test"))


class RecordingTransport(LocalTransport):
    """Records every request and every reply but those of evaluations."""

    def __init__(self, clients):
        super().__init__(clients)
        self.exchanged = []

    def request(self, requests):
        replies = super().request(requests)
        self.exchanged += [(client, digest(message)) for client, message in requests.items()]
        self.exchanged += [
            (client, digest(reply)) for client, reply in replies.items() if not isinstance(reply, Evaluated)
        ]
        return replies


def run_all(truth, *pairs):
    """All that a run is made of, and how many test images were found right."""
    config = config_of(*pairs)
    simulation = assemble(config, ProgressReporter(), dataset_with(truth))
    federation, scores = RecordingTransport(simulation.clients), []
    last = run(config, federation, simulation.server, lambda _, report: scores.append(report.scores))
    states = {name: bits(state_tensors(state)) for name, state in federation.states.items()}
    learned = {} if last.prior_model is None else bits(last.prior_model.to_arrays())
    return (bits(last.shared), learned, last.members, states, federation.exchanged), scores


WITHOUT_ALL_PRIORS = ["priors.logit_bias=false", "priors.prototypes=false"]
"""The priors do not depend on the method and take most of the time, so only FedCoPL runs with them."""


def bits(arrays):
    return {name: (str(value.dtype), value.shape, value.tobytes()) for name, value in arrays.items()}


ALL = [
    (method, labeler)
    for method in METHODS
    for labeler in ("copl", "fpl", "cpl")
    if method != "fedopt" and (labeler == "copl" or choose_method(RunConfig(method=method)).trains)
]


@pytest.mark.parametrize(("method", "labeler"), ALL)
def test_a_run_with_wrong_labels_is_the_same_run(method, labeler):
    less = [] if method == "fedcopl" else WITHOUT_ALL_PRIORS
    pairs = [f"method={method}", f"labeler={labeler}", *less]
    (ours, right), (same, wrong) = (run_all(truth, *pairs) for truth in ("true", "wrong"))
    assert ours == same
    assert right != wrong  # or else the truth was not changed at all


@pytest.mark.parametrize(
    "settings", [[], PUBLISHED, ["privacy.noise_multiplier=0.5"]], ids=["usual", "published", "noise"]
)
def test_a_run_without_any_label_is_the_same_run(settings):
    with_labels, without = (run_all(truth, *settings) for truth in ("true", "none"))
    assert with_labels[0] == without[0]
    assert without[1][-1] == {"north": (0, 0), "south": (0, 0)}


def test_the_folder_of_a_run_differs_only_in_what_was_measured(tmp_path):
    for truth in TRUTHS:
        simulate(config_of(), tmp_path / truth, dataset=dataset_with(truth))
    true, wrong, none = (files_of(tmp_path / truth) for truth in TRUTHS)
    assert true == wrong == none


def files_of(folder):
    """Prompts and labels of a run, which are all that it made."""
    files = [file for part in ("prompts", "labels") for file in (folder / part).rglob("*") if file.is_file()]
    assert len(files) >= 5
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize("partition", ["dirichlet", "quantity"])
def test_partition_labels_have_no_other_effect(partition, monkeypatch):
    # Wrong labels would give another partition, so the partition is always that of the true labels.
    def by_the_truth(_, data, seed):
        return partition_dataset(dataset_with("true"), data, seed)

    monkeypatch.setattr(assembly, "partition_dataset", by_the_truth)
    pairs = [f"partition={partition}", "clients=2", "beta=0.5"]
    (ours, right), (same, wrong) = (run_all(truth, *pairs) for truth in ("true", "wrong"))
    assert ours == same
    assert right != wrong


class TestSets:
    """Replaces the scores of test sets by given numbers, the nth for the nth call."""

    def __init__(self, monkeypatch, score):
        self._score, self.calls = score, Counter()
        monkeypatch.setattr(ClipTestSet, "predict", lambda test_set, prompts, prior=NO_PRIOR: self._predict(test_set))

    def _predict(self, test_set):
        right = self._score(self.calls[test_set])
        self.calls[test_set] += 1
        return torch.where(torch.arange(len(test_set.truth)) < right, test_set.truth, test_set.truth + 1)


REPORTED_SCORES = {
    "none right": lambda calls: 0,
    "all right": lambda calls: TEST,
    "rises, then falls": lambda calls: (1, 3, 6, 4, 2, 0)[calls % 6],
    "falls, then rises": lambda calls: (6, 4, 1, 0, 3, 5)[calls % 6],
}


@pytest.mark.parametrize("method", ["fedcopl", "promptfl", "pfedprompt"])
def test_scores_do_not_change_the_run(method, monkeypatch):
    pairs, runs = [f"method={method}", "rounds=3", *WITHOUT_ALL_PRIORS], []
    for score in REPORTED_SCORES.values():
        TestSets(monkeypatch, score)
        runs.append(run_all("true", *pairs))
    assert all(made == runs[0][0] for made, _ in runs)
    assert len({str(scores) for _, scores in runs}) == len(runs)  # or else the scores had no effect at all


def test_scores_do_not_change_the_folder(tmp_path, monkeypatch):
    # The loop over the rounds has the scores too, and could keep the prompts of the best round.
    for name, score in REPORTED_SCORES.items():
        TestSets(monkeypatch, score)
        simulate(config_of("rounds=3"), tmp_path / name, dataset=dataset_with("true"), workers=1)
    one, *others = (files_of(tmp_path / name) for name in REPORTED_SCORES)
    assert all(other == one for other in others)


def test_test_set_is_used_only_by_evaluate(monkeypatch):
    test_sets = TestSets(monkeypatch, lambda calls: 0)

    class Counting(LocalTransport):
        def request(self, requests):
            before = test_sets.calls.total()
            replies = super().request(requests)
            expected = sum(isinstance(message, Evaluate) for message in requests.values())
            assert test_sets.calls.total() - before == expected, {
                type(message).__name__ for message in requests.values()
            }
            return replies

    config = config_of("rounds=3")
    simulation = assemble(config, ProgressReporter(), dataset_with("true"))
    run(config, Counting(simulation.clients), simulation.server, lambda *_: None)
    assert test_sets.calls == dict.fromkeys(
        simulation.audit.evaluator.test_sets.values(), 4
    )  # three rounds, and the priors without training


# By types: no object with ground truth can be reached from the objects that label, select and train.

KNOW_THE_TRUTH = (Dataset, ImageSet, ClipTestSet, _PooledTestSet, Audit, Simulation, _GroundTruthLearner)
NOT_FOLLOWED = (type, ModuleType, FunctionType, MethodType, str, bytes, int, float)


def reachable(*roots):
    """Everything that can be got at from these objects without naming a module or a class."""
    seen, queue = {}, list(roots)
    while queue:
        one = queue.pop()
        if id(one) not in seen and not isinstance(one, NOT_FOLLOWED):
            seen[id(one)] = one
            queue += gc.get_referents(one)
    return list(seen.values())


def contains_labels(array, truth):
    """Whether an array is these labels, in whatever type."""
    values = array.numpy() if isinstance(array, torch.Tensor) else array
    return values.shape == truth.shape and np.array_equal(values, truth)


@pytest.mark.parametrize("method", METHODS)
def test_learner_has_no_reference_to_ground_truth(method):
    simulation = assemble(config_of(f"method={method}"), ProgressReporter(), dataset_with("true"))
    labels = dataset_with("true").train.labels
    for client, part in zip(simulation.clients.values(), simulation.parts.train, strict=True):
        found = reachable(*(getattr(client, one.name) for one in fields(client) if one.name != "test_set"))
        assert any(one is client.learner.images for one in found)  # the walk does get somewhere
        assert [type(one).__name__ for one in found if isinstance(one, KNOW_THE_TRUTH)] == []
        arrays = [one for one in found if isinstance(one, np.ndarray | torch.Tensor)]
        assert not [one for one in arrays if contains_labels(one, labels) or contains_labels(one, labels[part])]


def test_learner_with_ground_truth_is_detected():
    # The search detects both in the supervised upper bound, which is not part of a federation.
    simulation = assemble(config_of("method=central", "options.labels=truth"), ProgressReporter(), dataset_with("true"))
    found = reachable(simulation.clients["central"].learner)
    assert any(isinstance(one, _GroundTruthLearner) for one in found)
    labels = dataset_with("true").train.labels
    assert any(contains_labels(one, labels) for one in found if isinstance(one, np.ndarray))
