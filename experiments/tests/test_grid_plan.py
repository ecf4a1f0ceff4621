"""What is said before anything is played."""

import pytest

from fedcopl.clip.timing import TowerRates
from fedcopl.config import RunConfig
from fedcopl.methods import METHODS
from fedcopl_experiments import expected_cost, grid_plan
from fedcopl_experiments.experiment_catalog import find_experiments, runs_of
from fedcopl_experiments.grid_plan import make_plan, missing, rough_seconds
from fedcopl_experiments.run_key import run_key
from fedcopl_experiments.store import ResultStore
from made_up_outcomes import DEMO, PAPER
from stored_runs import failed, stored


@pytest.fixture(autouse=True)
def steady_machine(monkeypatch):
    """Without a GPU, and as fast whenever it is asked."""
    monkeypatch.setattr(grid_plan, "devices", list)
    monkeypatch.setattr(expected_cost, "_rates", lambda backbone: TowerRates(1e12, 5e11))


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
    *whole, half = [run.seconds for run in made.runs]
    assert whole == pytest.approx([3] * 5, rel=0.15)  # one of them is measured after every round
    assert half == pytest.approx(1.5, rel=0.1)  # zero-shot is looked at once, in few rounds as in many
    assert made.seconds(jobs=2) == pytest.approx((sum(whole[1:]) + half) / 2)
    assert all(run.likes == 1 for run in made.runs)


def test_a_method_that_was_never_timed_is_guessed_from_others_on_the_same_data(store):
    like = DEMO.config("digits")
    store.record(stored("a", **like.model_dump()))
    other, frozen = make_plan([DEMO.config("digits", "local"), DEMO.config("digits", "promptfl", "fpl")], store).runs
    per_flop = 3 / expected_cost.expected_cost(like).flop
    assert other.seconds == pytest.approx(per_flop * expected_cost.expected_cost(other.config).flop)
    assert frozen.seconds == pytest.approx(per_flop * expected_cost.expected_cost(frozen.config).flop)
    assert frozen.seconds < other.seconds / 5  # here every image is encoded once
    assert (other.likes, frozen.likes) == (0, 0)  # by other methods: a rough guess


@pytest.mark.parametrize("method", ["promptfl", "promptprox"])
def test_images_are_encoded_once_only_where_the_method_says_so(method):
    once, each_time = (
        DEMO.config("digits", method, changes={"options.modality": modality}) for modality in ("text", "dual")
    )
    # `dual` trains visual prompts as well, so that every pass encodes the images: as dear as FedCoPL
    assert rough_seconds(each_time) == pytest.approx(rough_seconds(DEMO.config("digits")), rel=0.1)
    assert rough_seconds(once) < rough_seconds(each_time) / 5


def test_every_method_is_planned_by_its_own_word():
    for name, build in METHODS.items():
        config = RunConfig(method=name, rounds=10)
        assert (rough_seconds(config) < rough_seconds(RunConfig(rounds=10)) / 2) == build(config).keeps_images


def test_a_stored_run_of_a_method_that_is_no_more_counts_for_nothing(store):
    store.record(stored("a", method="fedgone"))
    [run] = make_plan([DEMO.config("digits")], store).runs
    assert run.likes == 0


def test_without_any_timed_run_the_time_is_a_rough_guess(store):
    [run] = make_plan([DEMO.config("digits")], store).runs
    assert run.likes == 0
    cost = expected_cost.expected_cost(run.config)
    assert run.seconds == pytest.approx(cost.images / 1e12 + cost.texts / 5e11)


def test_a_model_that_is_not_here_is_planned_by_its_size():
    """ViT-B/16 has 197 tokens where ViT-B/32 has 50; of a model nobody knows the largest is thought."""
    small, large, strange = (
        rough_seconds(PAPER.config("dtd", backbone=name)) for name in ("ViT-B/32", "ViT-B/16", "no/such-model")
    )
    assert 3.5 < large / small < 5
    assert strange == rough_seconds(PAPER.config("dtd", backbone="ViT-L/14"))


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
