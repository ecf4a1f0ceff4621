"""Plans of grids: statuses, expected times, missing data and models."""

import pytest

from fake_outcomes import DEMO, PAPER
from fedcopl_experiments import grid_plan
from fedcopl_experiments.experiment_catalog import find_experiments, runs_of
from fedcopl_experiments.grid_plan import make_plan, missing
from fedcopl_experiments.run_key import run_key
from fedcopl_experiments.store import ResultStore
from stored_runs import failed, stored


@pytest.fixture(autouse=True)
def fixed_machine(monkeypatch):
    """Use a machine without a GPU and of fixed speed: 0.01 s per encoded image, 0.5 s per training step."""
    monkeypatch.setattr(grid_plan, "devices", list)
    monkeypatch.setattr(grid_plan, "_measure", lambda config: (0.01, 0.5))


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "results.sqlite")


def ablation(setup=DEMO):
    return runs_of(find_experiments(["table5"]), setup, [1])


def test_statuses_of_planned_runs(store):
    first, second, *_ = configs = ablation()
    store.record(stored(run_key(first), **first.model_dump()))
    store.record(failed(run_key(second)))
    made = make_plan(configs, store)
    assert [run.status for run in made.runs] == ["done", "failed before", "to run", "to run", "to run"]
    assert len(made.to_run) == 4


def test_expected_times_are_of_similar_runs(store):
    first, *_ = configs = ablation()
    store.record(stored(run_key(first), **first.model_dump()))  # 3 s for 10 rounds of 4 epochs
    short = first.model_copy(update={"rounds": 5})
    made = make_plan([*configs, short], store)
    *full, half = [run.seconds for run in made.runs]
    assert full == pytest.approx([3] * 5, rel=0.15)  # one of them is evaluated after every round
    assert half == pytest.approx(1.5, rel=0.1)  # zero-shot is measured once per run
    assert made.seconds(jobs=2) == pytest.approx((sum(full[1:]) + half) / 2)
    assert all(run.similar_runs == 1 for run in made.runs)


def test_a_method_without_stored_runs_is_measured(store):
    store.record(stored("a", **DEMO.config("digits").model_dump()))
    other, frozen = make_plan([DEMO.config("digits", "local"), DEMO.config("digits", "promptfl", "fpl")], store).runs
    for run in (other, frozen):
        work = grid_plan._workload(run.config)
        assert run.seconds == pytest.approx(0.01 * work.encoded + 0.5 * work.steps)
        assert run.similar_runs == 0
    assert grid_plan._workload(frozen.config).encoded == 1198 + 599  # every image is encoded once


def test_stored_run_of_a_removed_method_is_ignored(store):
    store.record(stored("a", method="fedgone"))
    [run] = make_plan([DEMO.config("digits")], store).runs
    assert run.similar_runs == 0


def test_without_its_model_or_data_the_time_is_unknown(store):
    made = make_plan([PAPER.config("dtd"), DEMO.config("digits")], store)
    paper, digits = made.runs
    assert paper.seconds is None and paper.similar_runs == 0
    assert made.seconds(jobs=1) == digits.seconds


def test_the_demo_needs_nothing():
    assert list(missing(ablation())) == []


def test_missing_data_and_models_of_the_paper_are_listed(monkeypatch, tmp_path):
    for variable in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(grid_plan, "find_spec", lambda name: None)
    lines = list(missing([PAPER.config("dtd"), PAPER.config("dtd", "promptfl", "fpl", "quantity")]))
    assert len(lines) == 4
    assert lines[0].startswith("data: data/dtd: there is no such folder")
    assert lines[1].startswith("model: ViT-B/32 is not in a cache")
    assert "fedcopl[hub]" in lines[2]
    assert lines[3].startswith("GPU: none was found")


def test_a_model_in_a_cache_is_not_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / ".cache/clip").mkdir(parents=True)
    (tmp_path / ".cache/clip/ViT-B-32.pt").write_bytes(b"weights")
    assert not any(line.startswith("model:") for line in missing([PAPER.config("dtd")]))


def test_unknown_model_is_listed():
    config = DEMO.config("digits")
    unknown = config.model_copy(update={"model": config.model.model_copy(update={"backbone": "ViT-B/33"})})
    assert any(line.startswith("model: ViT-B/33: no such file") for line in missing([unknown]))
