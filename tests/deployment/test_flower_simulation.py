"""Flower's simulation on Ray has the bits of a run in one process, also after a resume."""

import json
import shlex

import pytest

from deployment.toolbox import digit_sites
from fedcopl.config import RunConfig, override
from fedcopl.errors import ConfigError, RunFolderError
from fedcopl.flower_app import read_run_settings
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation import on_flower
from fedcopl.simulation.simulate import simulate

QUICK = ["rounds=3", "clients=3", "refresh_every=2", "epochs=1", "threads=1", "prototypes=false"]
CONFIG = RunConfig.from_mapping(override({}, QUICK), "test")


def on_images_below(root):
    """The same run by three sites with a folder of digits each."""
    data = ["source=folder", f"path={root}", "partition=natural"]
    return RunConfig.from_mapping(override({}, [*QUICK, *data]), "test")


class StopAfterOne(ProgressReporter):
    def round_done(self, record):
        raise KeyboardInterrupt


def outcome(folder):
    """All that must be equal: the results without the clock, and every prompt."""
    results = json.loads((folder / "results.json").read_text(), object_hook=without_clock)
    return results, {file.name: file.read_bytes() for file in sorted((folder / "prompts").rglob("*.safetensors"))}


def without_clock(record):
    return {key: value for key, value in record.items() if not key.startswith("seconds")}


@pytest.mark.slow
def test_a_run_resumed_on_ray_has_the_same_bits(tmp_path):
    digit_sites(tmp_path / "data", 3, 40, labelled=10)
    config = on_images_below(tmp_path / "data")
    simulate(config, tmp_path / "alone")
    with pytest.raises(KeyboardInterrupt):
        simulate(config, tmp_path / "ray", progress=StopAfterOne())
    # A new refresh, training and evaluation of the last two rounds are Ray's; the states come from the checkpoint.
    on_flower.simulate_on_ray(config, tmp_path / "ray", resume=True)
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "alone")
    assert not (tmp_path / "ray" / ".flower").exists()
    with pytest.raises(RunFolderError, match="already has a run"):
        on_flower.simulate_on_ray(config, tmp_path / "ray")


def test_the_clients_are_counted_before_ray_is_started():
    assert on_flower._client_count(CONFIG) == 3
    assert on_flower._client_count(CONFIG.model_copy(update={"method": "central"})) == 1


def test_the_run_config_becomes_a_plan(tmp_path):
    (tmp_path / "my.toml").write_text("rounds = 7")
    flat = {
        "settings": f"{shlex.quote(str(tmp_path / 'my.toml'))} train.epochs=2",
        "out": "x",
        "classes": "c.txt",
        "min-sites": 3,
    }
    plan = read_run_settings(flat)
    assert (plan.config.rounds, plan.config.train.epochs) == (7, 2)
    assert (str(plan.out), str(plan.classes_file), plan.timeouts.min_sites) == ("x", "c.txt", 3)
    assert read_run_settings({"out": "x"}).classes_file is None
    with pytest.raises(ConfigError, match="out: name the folder"):
        read_run_settings({"settings": "rounds=3"})
