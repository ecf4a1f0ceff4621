"""Runs that go on from a previous one: with its prompts, its labels, more classes, more clients."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedcopl.classifier import load
from fedcopl.config import RunConfig, override
from fedcopl.data.dataset import Dataset
from fedcopl.errors import ConfigError
from fedcopl.run.checkpoint import load_checkpoint
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation.simulate import simulate
from small_digits import small_digits

pytestmark = pytest.mark.slow
QUICK = ["rounds=2", "clients=2", "partition=iid", "epochs=1", "threads=1", "holdout=0"]


def config_of(*pairs):
    return RunConfig.from_mapping(override({}, [*QUICK, *pairs]), "test")


def without_class(dataset: Dataset, number: int) -> Dataset:
    """Return the dataset without its last class."""
    parts = (dataset.train, dataset.test)
    train, test = (part.without(np.flatnonzero(part.labels == number).tolist()) for part in parts)
    return replace(dataset, classes=dataset.classes[:number], train=train, test=test)


DIGITS = small_digits(500, 120)  # with fewer images, zero-shot CLIP predicts hardly any nine


@pytest.fixture(scope="module")
def nine_classes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "may"
    simulate(config_of("name=may"), folder, dataset=without_class(DIGITS, 9))
    return folder


@pytest.fixture(scope="module")
def june(nine_classes, tmp_path_factory):
    """The class nine is added, and a third client comes: its images are of those of the first two."""
    folder = tmp_path_factory.mktemp("runs") / "june"
    outcome = simulate(config_of("clients=3"), folder, dataset=DIGITS, previous_run=nine_classes)
    return outcome, folder


def test_continued_run_starts_with_previous_prompts(nine_classes, june):
    left = {name: load_file(nine_classes / f"prompts/clients/{name}.safetensors") for name in ("client-0", "client-1")}
    states = load_checkpoint(june[1]).clients
    for name, own in left.items():
        assert np.array_equal(states[name].previous_model["text"], own["text"])
        assert np.array_equal(
            states[name].previous_model["visual"], load_file(nine_classes / "prompts/server.safetensors")["visual"]
        )
    assert states["client-2"].previous_model == {}


def test_added_class_is_predicted(june):
    outcome, folder = june
    assert outcome.classes[9] == DIGITS.classes[9]
    assert outcome.final.recall[9] > 0.5
    nines = [DIGITS.test.images[number] for number in np.flatnonzero(DIGITS.test.labels == 9)]
    for client in ("client-0", "client-2"):
        predictions = load(folder, client=client).predict(nines)
        assert (np.asarray(predictions) == DIGITS.classes[9]).mean() > 0.5


def test_record_has_reference_without_path(nine_classes, june):
    outcome, folder = june
    name, digest = outcome.settings["previous_run"].split()
    assert name == "may" and len(digest) == 16
    assert f'previous_run = "may {digest}"' in (folder / "settings.toml").read_text()
    assert str(nine_classes.parent) not in (folder / "results.json").read_text()


class StopAfterOne(ProgressReporter):
    def round_done(self, record):
        raise KeyboardInterrupt


class StopAtOnce(ProgressReporter):
    def started(self, config, clients, done):
        raise KeyboardInterrupt


def prompt_bytes(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "prompts").rglob("*.safetensors"))}


def test_continued_run_resumes_without_previous_folder(nine_classes, june, tmp_path):
    config, folder = config_of("clients=3"), tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        simulate(config, folder, dataset=DIGITS, previous_run=nine_classes, progress=StopAfterOne())
    resumed = config.model_copy(update={"previous_run": june[0].settings["previous_run"]})
    simulate(resumed, folder, dataset=DIGITS, resume=True)
    assert prompt_bytes(folder) == prompt_bytes(june[1])


def test_continued_run_with_workers_has_the_same_bits(nine_classes, june, tmp_path):
    simulate(config_of("clients=3"), tmp_path / "spread", dataset=DIGITS, previous_run=nine_classes, workers=2)
    assert prompt_bytes(tmp_path / "spread") == prompt_bytes(june[1])


def test_continued_run_without_checkpoint_needs_previous_folder(nine_classes, june, tmp_path):
    config, folder = config_of("clients=3"), tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        simulate(config, folder, dataset=DIGITS, previous_run=nine_classes, progress=StopAtOnce())
    resumed = config.model_copy(update={"previous_run": june[0].settings["previous_run"]})
    with pytest.raises(ConfigError, match="continue the run may; name its folder with --from"):
        simulate(resumed, folder, dataset=DIGITS, resume=True)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["method=promptfl"], "is a run with method=fedcopl, and this run has method=promptfl"),
        (["method=zeroshot"], "method=zeroshot does not train"),
        (["aggregate=text"], "averaged visual, and this run averages text"),
        (["text_prompts=4"], "its prompt 'text' has the shape"),
    ],
)
def test_another_kind_of_run_is_refused(nine_classes, tmp_path, pairs, words):
    with pytest.raises(ConfigError, match=words):
        simulate(config_of(*pairs), tmp_path / "no", dataset=DIGITS, previous_run=nine_classes)
    assert not (tmp_path / "no").exists()


def test_another_model_is_refused(nine_classes, tmp_path):
    results = nine_classes / "results.json"
    as_it_was = results.read_text()
    results.write_text(as_it_was.replace('"backbone": "glyph-clip ', '"backbone": "glyph-clip 00'))
    with pytest.raises(
        ConfigError, match=r"was trained on the model glyph-clip 00[0-9a-f]*, and this run has glyph-clip"
    ):
        simulate(config_of(), tmp_path / "no", dataset=DIGITS, previous_run=nine_classes)
    results.write_text(as_it_was)
