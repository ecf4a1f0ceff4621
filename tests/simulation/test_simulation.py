"""Whole runs in one process, on the built-in model and real digits."""

import json
import time
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

from deployment.toolbox import digit_sites
from fedcopl.config import RunConfig, override
from fedcopl.data.catalog import load_digits
from fedcopl.data.partitioning import partition_dataset
from fedcopl.errors import DataError, RunFolderError
from fedcopl.methods.learner import ClipLearner
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.run.record import round_to_plain, to_plain
from fedcopl.simulation.simulate import simulate
from preloaded_processes import PreloadedProcess
from small_digits import ONLY_LABEL_SHIFT, small_digits

QUICK = ["rounds=3", "clients=4", "refresh_every=2", "epochs=1", "threads=1"]


def config_of(*pairs):
    return RunConfig.from_mapping(override({}, [*QUICK, *pairs]), "test")


def few():
    return small_digits(train=120, test=60)


def simulated(folder, *pairs, **how):
    return simulate(config_of(*pairs), folder, dataset=few(), **how)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "quick"
    return simulated(folder), folder


def without_times(results):
    """Return everything of an outcome that must be equal in two runs: all but times."""
    return json.loads(
        json.dumps(results if isinstance(results, dict) else to_plain(results)),
        object_hook=lambda d: {k: v for k, v in d.items() if not k.startswith("seconds")},
    )


def prompt_bytes(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "prompts").rglob("*.safetensors"))}


def test_results_have_all_keys(finished):
    results, folder = finished
    for measured in (results.zero_shot, results.final, results.best):
        assert all(0 < share <= 1 for share in (measured.macro, measured.weighted, measured.everywhere))
    assert results.final.round == 2
    assert results.best.macro == max(record.macro for record in results.rounds)
    assert len(results.pseudo_label_accuracy) == 2
    assert [record.round for record in results.rounds] == [0, 1, 2]
    assert all(record.loss > 0 for record in results.rounds)
    assert len(results.clients) == 4
    assert results.setting("data", "clients") == 4
    assert {"python", "torch", "fedcopl"} <= set(results.versions)
    assert json.loads((folder / "results.json").read_text()) == to_plain(results)


def test_counts_of_a_run_are_consistent(finished):
    results, _ = finished
    digits = few()
    assert sum(client.train for client in results.clients) == len(digits.train)
    assert sum(client.test for client in results.clients) == len(digits.test)
    assert np.sum([client.true_counts for client in results.clients]) == len(digits.train)
    for refresh in results.refreshes:
        selected, allocated = np.array(refresh.selected), np.array(refresh.allocated)
        assert (selected <= allocated).all()
        assert selected.sum() == refresh.images
    tested = [client for client in results.clients if client.test]
    macro = np.mean([client.final for client in tested])
    weighted = np.average([client.final for client in tested], weights=[client.test for client in tested])
    assert results.final.macro == pytest.approx(macro)
    assert results.final.weighted == pytest.approx(weighted)


def test_zero_shot_is_the_same_everywhere_and_weighted(finished):
    # One model for all: the whole test set is the sum of the parts.
    results, _ = finished
    assert results.zero_shot.everywhere == pytest.approx(results.zero_shot.weighted)


def test_pseudo_label_accuracy_is_of_the_selected_images(finished):
    results, folder = finished
    checkpoint = load_file(folder / "checkpoint.safetensors")
    config = config_of()
    digits = few()
    parts = partition_dataset(digits, config.data, config.seed)
    right = chosen = 0
    for number, part in enumerate(parts.train):
        truth = digits.train.labels[part][checkpoint[f"client/{number}/index"]]
        right += (truth == checkpoint[f"client/{number}/label"]).sum()
        chosen += len(truth)
    assert results.pseudo_label_accuracy[-1] == pytest.approx(right / chosen)


def test_the_folder_has_all_files(finished):
    results, folder = finished
    names = {path.name for path in folder.iterdir() if path.name != ".lock"}
    assert names == {
        "images.txt",
        "settings.toml",
        "results.json",
        "examples.json",
        "labels",
        "rounds.jsonl",
        "checkpoint.safetensors",
        "prompts",
    }
    assert set(load_file(folder / "prompts" / "server.safetensors")) == {"visual"}
    assert set(load_file(folder / "prompts" / "clients" / "client-3.safetensors")) == {"text"}
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert lines == [round_to_plain(record) for record in results.rounds]
    assert RunConfig.from_mapping(tomllib.loads((folder / "settings.toml").read_text()), "test") == config_of()


def test_equal_seeds_give_the_same_bits_and_others_another_partition(finished, tmp_path):
    results, folder = finished
    again = simulated(tmp_path / "again")
    assert without_times(again) == without_times(results)
    assert prompt_bytes(tmp_path / "again") == prompt_bytes(folder)
    other = simulated(tmp_path / "other", "seed=2", "rounds=1")
    assert [c.train for c in other.clients] != [c.train for c in results.clients]


class StopAfter(ProgressReporter):
    """Breaks a run off as Ctrl-C would."""

    def __init__(self, rounds):
        self.left = rounds

    def round_done(self, record):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("rounds", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_stopped_run_resumes_to_the_same_bits(finished, tmp_path, rounds):
    results, folder = finished
    with pytest.raises(KeyboardInterrupt):
        simulated(tmp_path / "run", progress=StopAfter(rounds))
    assert not (tmp_path / "run" / "results.json").exists()
    resumed = simulated(tmp_path / "run", resume=True)
    assert without_times(resumed) == without_times(results)
    assert prompt_bytes(tmp_path / "run") == prompt_bytes(folder)


def test_resuming_a_finished_run_changes_nothing(finished, monkeypatch):
    results, folder = finished
    monkeypatch.setattr(ClipLearner, "train", None)  # must not be called
    assert without_times(simulated(folder, resume=True)) == without_times(results)


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_run_resumes_only_with_the_images_it_began_with(tmp_path, change):
    digit_sites(tmp_path / "data", images=12)
    data = ["data.source=folder", f"data.path={tmp_path / 'data'}", "data.partition=natural"]
    config = config_of(*data, *ONLY_LABEL_SHIFT)
    with pytest.raises(KeyboardInterrupt):
        simulate(config, tmp_path / "run", progress=StopAfter(1), workers=1)
    first, second, *_ = sorted((tmp_path / "data/clients/site-a/train").iterdir())
    first.write_bytes(second.read_bytes()) if change == "replaced" else first.unlink()
    with pytest.raises(RunFolderError, match=r"was started with other images \(36 images, \w+; now 3\d images, \w+\)"):
        simulate(config, tmp_path / "run", resume=True, workers=1)


def test_a_finished_run_is_not_overwritten(finished):
    _, folder = finished
    with pytest.raises(RunFolderError, match="already has a run"):
        simulated(folder)


def start_run(root, out, *extra):
    data = ["data.source=folder", f"data.path={root / 'data'}", "data.partition=natural"]
    given = [*QUICK, *data, "rounds=5", *ONLY_LABEL_SHIFT, "--out", str(root / out), *extra]
    return PreloadedProcess(["run", *given], root)


MOMENTS = {  # of a run with refreshes in rounds 0, 2 and 4: the content of its folder
    "settings written": lambda folder: (folder / "settings.toml").exists(),
    "first labels written": lambda folder: (folder / "labels").exists() and any((folder / "labels").rglob("*0*")),
    "first checkpoint written": lambda folder: (folder / "checkpoint.safetensors").exists(),
    "three rounds finished": lambda folder: rounds_in(folder) >= 3,
}


def rounds_in(folder):
    file = folder / "rounds.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def resume_option(folder):
    """Return the option that resumes a run; a run that was killed before it wrote its settings is started anew."""
    return ["--resume"] if (folder / "settings.toml").exists() else []


@pytest.mark.slow
def test_killed_at_any_moment_it_resumes_to_the_same_bits(tmp_path):
    digit_sites(tmp_path / "data", images=40)
    whole = start_run(tmp_path, "whole")
    killed = 0
    for has_come in MOMENTS.values():
        process = start_run(tmp_path, "killed", *resume_option(tmp_path / "killed"))
        while process.poll() is None and not has_come(tmp_path / "killed"):
            time.sleep(0.002)
        killed += process.poll() is None
        process.kill()
        process.wait()
    last = start_run(tmp_path, "killed", *resume_option(tmp_path / "killed"))
    assert last.wait() == 0, last.stdout.read()
    assert killed >= 2
    assert whole.wait() == 0
    assert prompt_bytes(tmp_path / "killed") == prompt_bytes(tmp_path / "whole")
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("killed", "whole")]
    assert without_times(results[0]) == without_times(results[1])


def small_run(folder, *pairs):
    return simulated(folder, "rounds=2", *ONLY_LABEL_SHIFT, *pairs)


@pytest.mark.slow
@pytest.mark.parametrize("aggregate", ["text", "both", "none"])
def test_runs_with_other_aggregation(tmp_path, aggregate):
    results = small_run(tmp_path / "run", f"aggregate={aggregate}")
    shared = {"text": {"text"}, "both": {"text", "visual"}, "none": set()}[aggregate]
    assert set(load_file(tmp_path / "run" / "prompts" / "server.safetensors")) == shared
    assert results.final.everywhere is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "pairs",
    [
        ["confidence_filter=false", "entropy_filter=false", "global_allocation=false"],
        ["candidates=any", "budget=ceil", "unseen=none"],
        ["participation=0.5"],
        ["partition=quantity"],
        ["partition=iid", "visual_depth=all", "text_prompts=4"],
        ["visual_prompts=0"],
        ["evaluation.every=2", "everywhere=false", "schedule=run"],
    ],
)
def test_runs_with_components_switched_off(tmp_path, pairs):
    results = small_run(tmp_path / "run", *pairs)
    assert results.final.macro > 0.3


@pytest.mark.slow
def test_without_global_allocation_no_counts_are_sent(tmp_path):
    # Without priors every client trains, and so reports its hold-out check.
    settings = "rounds=1", "logit_bias=false", "label_shift=false", "prototypes=false"
    on, off = (small_run(tmp_path / flag, f"global_allocation={flag}", *settings) for flag in ("true", "false"))
    # one count of eight bytes for each of ten classes, from each of four clients
    assert on.rounds[0].bytes_up - off.rounds[0].bytes_up == 4 * 10 * 8
    refresh = off.refreshes[0]
    assert refresh.allocated == refresh.estimated


@pytest.mark.slow
def test_a_thousand_clients(tmp_path):
    config = config_of("rounds=1", "clients=1000", "participation=0.05", "everywhere=false", *ONLY_LABEL_SHIFT)
    results = simulate(config, tmp_path / "run", dataset=small_digits(train=1198, test=60))
    assert len(results.clients) == 1000
    assert min(client.train for client in results.clients) == 1  # 1,198 images: one image each is possible
    assert results.rounds[0].participants == 50


def test_data_set_without_labels_cannot_be_partitioned_by_class():
    digits = load_digits()
    unlabelled = type(digits.train)(digits.train.images, None)
    with pytest.raises(DataError, match=r"digits: has no labels.*data\.partition=iid"):
        partition_dataset(
            type(digits)("digits", digits.classes, digits.template, unlabelled, unlabelled),
            config_of().data,
            1,
        )
