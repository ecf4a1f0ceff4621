"""The estimate of a run's time: counts by hand, one real measurement, and a busy machine."""

import json

import pytest

from fedcopl.clip.frozen_clip import load_clip
from fedcopl.config import AS_PUBLISHED, RunConfig, override
from fedcopl.data.catalog import load_digits
from fedcopl.methods import METHODS
from fedcopl.simulation import time_estimate
from fedcopl.simulation.time_estimate import Workload, estimate_time, workload

SIZE = {"train": 1000, "test": 300, "clients": 4, "classes": 10}


def published(*pairs):
    paper = [f"{name}={json.dumps(value)}" for name, value in AS_PUBLISHED.items()]
    return RunConfig.from_mapping(override({}, [*paper, *pairs]), "test")


def test_work_by_hand():
    config = published("rounds=7", "refresh_every=3", "epochs=2", "batch=100", "evaluation.every=2")
    # Zero-shot encodes 1300 images. Labels are refreshed in rounds 3 and 6, tests follow 2, 4, 6 and 7.
    # Half of the images have a label, 125 at each client: two batches.
    assert workload(config, **SIZE) == Workload(1300 + 2 * 1000 + 4 * 300, 7 * 2 * 4 * 2)


def test_work_with_partial_participation_and_a_holdout_by_hand():
    config = published("rounds=2", "epochs=1", "batch=50", "participation=0.5", "holdout=0.2")
    # Two clients train on 100 of 125 images each; the other 25 are encoded twice a round.
    assert workload(config, **SIZE) == Workload(1300 + 2 * 300 + 2 * 2 * 2 * 25, 2 * 2 * 2)


def test_fpl_selects_a_fixed_number_of_each_class():
    config = published("labeler=fpl", "per_class=2", "rounds=1", "epochs=1", "batch=5")
    assert workload(config, **SIZE).steps == 4 * 4  # 20 images at each of four clients


@pytest.mark.parametrize("busy", [False, True])
def test_an_estimate_is_measured_and_names_a_busy_machine(monkeypatch, busy):
    monkeypatch.setattr(time_estimate, "_is_busy", lambda: busy)
    run = estimate_time(published("rounds=2", "epochs=1"), load_clip("glyph-clip"), load_digits())
    assert 0.01 < run.seconds < 600 and 0.5e9 < run.memory < 10e9
    assert ("(measured now on a busy machine: may be less)" in str(run)) == busy
    assert "2 rounds of 1 epoch" in str(run)


def test_seconds_are_counts_times_measured_times(monkeypatch):
    monkeypatch.setattr(time_estimate, "measure_seconds", lambda *given: (0.25, 2.0))
    run = estimate_time(published("rounds=1"), load_clip("glyph-clip"), load_digits())
    assert run.seconds == (run.work.encoded / 4 + 2 * run.work.steps) / run.workers


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_measured(method):
    config = published(f"method={method}", "batch=4")
    encoding, step = time_estimate.measure_seconds(config, load_clip("glyph-clip"), load_digits())
    assert encoding > 0 and (step > 0) == METHODS[method](config).trains


def test_load_above_the_cores_is_busy(monkeypatch):
    monkeypatch.setattr(time_estimate, "available_cores", lambda: 4)
    for load, busy in ((4.5, True), (3.5, False)):
        monkeypatch.setattr(time_estimate.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert time_estimate._is_busy() == busy
