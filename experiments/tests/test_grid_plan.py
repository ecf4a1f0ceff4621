"""What is said before anything is played."""

import pytest

from fedcopl.config import RunConfig
from fedcopl.methods import METHODS
from fedcopl_experiments import grid_plan
from fedcopl_experiments.experiment_catalog import find_experiments, runs_of
from fedcopl_experiments.grid_plan import make_plan, missing, rough_seconds
from fedcopl_experiments.run_key import run_key
from fedcopl_experiments.store import ResultStore
from made_up_outcomes import DEMO, PAPER
from stored_runs import failed, stored


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(grid_plan, "devices", list)


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "results.sqlite")


def ablation(stage=DEMO):
    return runs_of(find_experiments(["table5"]), stage, [1])


def test_done_failed_and_to_play(store):
    first, second, *_ = configs = ablation()
    store.record(stored(run_key(first), **first.model_dump()))
    store.record(failed(run_key(second)))
    made = make_plan(configs, store)
    assert [run.status for run in made.runs] == ["done", "failed before", "to play", "to play", "to play"]
    assert len(made.to_play) == 4


def test_times_are_those_of_like_runs(store):
    first, *_ = configs = ablation()
    store.record(stored(run_key(first), **first.model_dump()))  # 3 s for 10 rounds of 4 epochs
    short = first.model_copy(update={"rounds": 5})
    made = make_plan([*configs, short], store)
    assert [run.seconds for run in made.runs] == pytest.approx([3, 3, 3, 3, 3, 1.5])
    assert made.seconds(jobs=2) == pytest.approx((4 * 3 + 1.5) / 2)
    assert all(run.likes == 1 for run in made.runs)


def test_a_method_that_was_never_timed_is_guessed_from_others_on_the_same_data(store):
    like = DEMO.config("digits")
    store.record(stored("a", **like.model_dump()))
    other, frozen = make_plan([DEMO.config("digits", "local"), DEMO.config("digits", "promptfl", "fpl")], store).runs
    assert other.seconds == pytest.approx(3)
    # 30 passes took 3 s; here every image is encoded once, and the 30 passes are twenty times cheaper
    assert frozen.seconds == pytest.approx(3 / 30 * (1 + 30 / 20))
    assert (other.likes, frozen.likes) == (0, 0)  # by other methods: a rough guess


@pytest.mark.parametrize("method", ["promptfl", "promptprox"])
def test_images_are_encoded_once_only_where_the_method_says_so(method):
    once, each_time = (
        DEMO.config("digits", method, changes={"options.modality": modality}) for modality in ("text", "dual")
    )
    # `dual` trains visual prompts as well, so that every pass encodes the images: as dear as FedCoPL
    assert rough_seconds(each_time) == rough_seconds(DEMO.config("digits"))
    assert rough_seconds(once) < rough_seconds(each_time) / 10


def test_every_method_is_planned_by_its_own_word():
    for name, build in METHODS.items():
        config = RunConfig(method=name, rounds=10)
        assert (rough_seconds(config) < rough_seconds(RunConfig(rounds=10))) == build(config).keeps_images


def test_a_stored_run_of_a_method_that_is_no_more_counts_for_nothing(store):
    store.record(stored("a", method="fedgone"))
    [run] = make_plan([DEMO.config("digits")], store).runs
    assert run.likes == 0


def test_without_any_timed_run_the_time_is_a_rough_guess(store):
    [run] = make_plan([DEMO.config("digits")], store).runs
    assert run.likes == 0
    # 10 rounds of half the images 4 times and all of them once more: 30 passes over 1,198 images, 500 a second
    assert run.seconds == pytest.approx(30 * 1198 / 500)


def test_a_gpu_is_faster(monkeypatch):
    slow = rough_seconds(PAPER.config("dtd"))
    monkeypatch.setattr(grid_plan, "devices", lambda: ["0"])
    assert rough_seconds(PAPER.config("dtd")) == pytest.approx(slow * 3 / 300)


def test_the_demo_needs_nothing():
    assert list(missing(ablation())) == []


def test_what_the_paper_needs_is_named(monkeypatch, tmp_path):
    for variable in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(grid_plan, "find_spec", lambda name: None)
    said = list(missing([PAPER.config("dtd"), PAPER.config("dtd", "promptfl", "fpl", "quantity")]))
    assert len(said) == 4
    assert said[0].startswith("data: data/dtd: there is no such folder")
    assert said[1].startswith("model: ViT-B/32 is in no cache")
    assert "fedcopl[hub]" in said[2]
    assert said[3].startswith("GPU: none was found")


def test_a_model_in_a_cache_is_not_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / ".cache/clip").mkdir(parents=True)
    (tmp_path / ".cache/clip/ViT-B-32.pt").write_bytes(b"weights")
    assert not any(line.startswith("model:") for line in missing([PAPER.config("dtd")]))


def test_a_model_that_nobody_knows_is_named():
    config = DEMO.config("digits")
    strange = config.model_copy(update={"model": config.model.model_copy(update={"backbone": "ViT-B/33"})})
    assert any(line.startswith("model: ViT-B/33: no such file") for line in missing([strange]))
