"""Whole runs of every method, and the reductions that tie them together."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedcopl.cli.show import _facts
from fedcopl.config import AS_PUBLISHED, RunConfig, override
from fedcopl.errors import ConfigError
from fedcopl.methods import METHODS, choose_method
from fedcopl.run.record import to_plain
from fedcopl.simulation.simulate import simulate
from small_digits import ONLY_LABEL_SHIFT, small_digits

PUBLISHED = [f"{name}={json.dumps(value)}" for name, value in AS_PUBLISHED.items()]
METHOD_TRAINS = {name: choose_method(RunConfig(method=name)).trains for name in METHODS}
QUICK = ["rounds=2", "clients=3", "refresh_every=1", "epochs=1", "threads=1", "everywhere=false"]


def run(folder, *pairs, dataset=None):
    config = RunConfig.from_mapping(override({}, [*QUICK, *pairs]), "test")
    return simulate(config, folder, dataset=dataset or small_digits())


def few():
    """A small dataset, for tests that do not depend on the number of images."""
    return small_digits(train=80, test=40)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "fedcopl")


def prompts_of(folder):
    return {path.name: load_file(path) for path in (folder / "prompts").rglob("*.safetensors")}


@pytest.mark.parametrize("labeler", ["copl", "fpl", "cpl"])
@pytest.mark.parametrize("method", [name for name in METHODS if name != "fedopt" and METHOD_TRAINS[name]])
@pytest.mark.slow
def test_every_method_with_every_labeler(tmp_path, method, labeler):
    priors = [] if method == "fedcopl" else ONLY_LABEL_SHIFT
    results = run(tmp_path / "run", f"method={method}", f"labeler={labeler}", *priors, dataset=few())
    assert results.final.macro > 0.2  # chance is 0.1
    assert len(results.pseudo_label_accuracy) == 2
    last = results.refreshes[-1]
    assert (last.coverage is not None) == (labeler == "cpl")
    if labeler == "cpl":
        assert last.coverage >= last.pseudo_label_accuracy
        assert last.mean_set_size >= 1
    assert 0 < last.distribution_similarity <= 1
    json.dumps(to_plain(results), allow_nan=False)


def test_zero_shot_stays_zero_shot(tmp_path):
    results = run(tmp_path / "run", "method=zeroshot")
    assert results.final.macro == results.zero_shot.macro
    assert len(results.rounds) == 1  # nothing is trained, so a second would be the same
    assert ("training", "none: CLIP trains nothing") in list(_facts(results))


@pytest.mark.slow
def test_record_has_accuracy_of_priors_before_training(tmp_path, finished):
    alone = run(tmp_path / "priors", "method=priors", "rounds=1")
    assert finished.untrained.clients == alone.final.clients
    assert alone.untrained is None  # there it is the result


@pytest.mark.slow
def test_fedopt_is_fedotp(tmp_path):
    names = ("fedotp", "fedopt")
    one, other = (run(tmp_path / name, f"method={name}", "rounds=1", dataset=few()) for name in names)
    assert one.final.macro == other.final.macro


@pytest.mark.slow
def test_one_client_is_central_training(tmp_path):
    # With one client there is nothing to average: FedCoPL, local and central training are the same.
    for name in ("fedcopl", "local", "central"):
        run(tmp_path / name, f"method={name}", "clients=1", *PUBLISHED, dataset=few())
    federated = prompts_of(tmp_path / "fedcopl")
    visual, text = federated["server.safetensors"]["visual"], federated["client-0.safetensors"]["text"]
    for name, file in (("local", "client-0.safetensors"), ("central", "central.safetensors")):
        own = prompts_of(tmp_path / name)[file]
        assert (own["visual"] == visual).all()
        assert (own["text"] == text).all()


@pytest.mark.slow
def test_training_on_true_labels_is_an_upper_bound_on_every_image(tmp_path):
    upper_bound = run(tmp_path / "upper_bound", "method=central", "options.labels=truth")
    pseudo = run(tmp_path / "pseudo", "method=central")
    assert upper_bound.pseudo_label_accuracy == (1.0, 1.0)
    assert upper_bound.images_used == upper_bound.clients[0].train == 240
    assert upper_bound.final.weighted > pseudo.final.weighted
    assert pseudo.clients[0].test == 120


@pytest.mark.slow
def test_central_training_is_evaluated_on_each_clients_test_set(tmp_path, finished):
    central = run(tmp_path / "central", "method=central", "rounds=1")
    assert central.zero_shot == finished.zero_shot
    assert len(central.rounds[0].clients) == 3


def test_drift_of_shared_and_personal_arrays(finished):
    first, second = (record.drift for record in finished.rounds)
    assert set(first) == set(second) == {"visual", "text"}
    for name in ("visual", "text"):
        assert second[name].diversity >= 1 / 3 - 1e-9  # equal moves are the least
        assert 0 <= second[name].cosine <= 2


def test_recall_is_of_the_classes(finished):
    recall = np.array(finished.rounds[-1].recall, float)
    assert recall.shape == (10,)
    assert ((recall >= 0) & (recall <= 1)).all()
    # Weighted by how often each class is tested, recall is accuracy.
    present = np.bincount(small_digits().test.labels)
    assert (recall * present).sum() / present.sum() == pytest.approx(finished.final.weighted)


@pytest.mark.slow
def test_a_method_with_a_memory_resumes_to_the_same_bits(tmp_path):
    from fedcopl.run.progress_reporter import ProgressReporter

    class Stop(ProgressReporter):
        def round_done(self, record):
            raise KeyboardInterrupt

    pairs = ["method=pfedprompt", "labeler=cpl", "refresh_every=2", "rounds=3"]
    whole = run(tmp_path / "whole", *pairs, dataset=few())
    config = RunConfig.from_mapping(override({}, [*QUICK, *pairs]), "test")
    with pytest.raises(KeyboardInterrupt):
        simulate(config, tmp_path / "stopped", progress=Stop(), dataset=few())
    resumed = simulate(config, tmp_path / "stopped", resume=True, dataset=few())
    assert resumed.final.macro == whole.final.macro
    for name, arrays in prompts_of(tmp_path / "whole").items():
        for key, value in arrays.items():
            assert (prompts_of(tmp_path / "stopped")[name][key] == value).all(), (name, key)


def test_a_wrong_option_is_refused_before_any_work(tmp_path):
    with pytest.raises(ConfigError, match="promptfl has no such option"):
        run(tmp_path / "run", "method=promptfl", "options.mu=1")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_memory_of_changing_size_has_no_drift(tmp_path):
    # At each refresh the memory has another size; only prompts have a drift.
    results = run(tmp_path / "run", "method=pfedprompt", "clients=5", "participation=0.2", "rounds=4")
    assert {name for record in results.rounds for name in record.drift} == {"text"}
