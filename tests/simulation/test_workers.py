"""A simulation in workers: the same bits as one after another, and the same words when something breaks."""

import os
import re
import signal
import time

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from fedcopl.clip.frozen_clip import load_clip
from fedcopl.data.catalog import CLASSES
from fedcopl.errors import ClientFailed, ConfigError
from fedcopl.federation.client import Client
from fedcopl.messages import Evaluate, Evaluated
from fedcopl.methods import with_effective_rounds
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.run.record import to_plain
from fedcopl.simulation import worker_pool as workers
from fedcopl.simulation.assemble import assemble
from fedcopl.simulation.simulate import LocalTransport, simulate
from fedcopl.simulation.worker_pool import open_pool, workers_for, working_memory
from few_sites import config_of, reference_run, result_files, three_site_digits, without_times  # noqa: F401


def simulated(folder, count, *pairs):
    return simulate(config_of(*pairs), folder, workers=count, dataset=three_site_digits())


@pytest.mark.parametrize(
    "pairs",
    [
        (),
        ("method=local", "labeler=fpl"),
        ("method=pfedmoap", "labeler=cpl"),
        ("privacy.secure_aggregation=true", "privacy.noise_multiplier=0.5"),
    ],
    ids=["fedcopl", "local", "pfedmoap", "private"],
)
def test_results_do_not_depend_on_the_number_of_workers(tmp_path, reference_run, pairs):  # noqa: F811
    one, folder = reference_run(*pairs)
    three = simulated(tmp_path / "3", 3, *pairs)
    assert without_times(to_plain(one)) == without_times(to_plain(three))
    assert result_files(folder) == result_files(tmp_path / "3")


def test_a_worker_that_is_killed_changes_no_bit(tmp_path, reference_run, monkeypatch):  # noqa: F811
    _, whole = reference_run()
    handle, mark = Client.handle, tmp_path / "killed"

    def deadly(client, message, state):
        if type(message).__name__ == "Train" and message.round == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return handle(client, message, state)

    monkeypatch.setattr(Client, "handle", deadly)
    simulated(tmp_path / "killed-once", 2)
    assert mark.exists()
    assert result_files(whole) == result_files(tmp_path / "killed-once")


def test_failing_client_is_named_with_workers(tmp_path, monkeypatch):
    messages = []
    for count, deed in ((1, "raise"), (2, "raise"), (2, "die")):

        def broken(client, message, state, deed=deed):
            if deed == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a fault")

        monkeypatch.setattr(Client, "handle", broken)
        with pytest.raises(ClientFailed) as error:
            simulated(tmp_path / f"{count}-{deed}", count)
        messages.append(re.sub("client (east|north|south)", "client X", str(error.value)))
    assert messages[0] == messages[1] == "client X failed in round 1, step Evaluate: a fault"
    assert (
        "step Evaluate: its process was killed by signal 9, twice; is there enough memory? --workers 1" in messages[2]
    )


def test_time_of_a_request_is_wall_time(monkeypatch):
    monkeypatch.setattr(Client, "handle", lambda client, message, state: (time.sleep(0.3), (Evaluated(0, 0), state))[1])
    simulation = assemble(with_effective_rounds(config_of()), ProgressReporter(), three_site_digits())
    with open_pool(simulation, 3) as pool:
        clients = LocalTransport(simulation.clients, pool=pool)
        began = time.perf_counter()
        clients.request(dict.fromkeys(simulation.clients, Evaluate(0, None)))
        wall = time.perf_counter() - began
        assert 0.3 <= clients.take_seconds()["Evaluate"] <= wall
        assert clients.take_seconds() == {}


def threads_of_numpy():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_one_thread_also_without_workers():
    simulation, before = (
        assemble(with_effective_rounds(config_of()), ProgressReporter(), three_site_digits()),
        torch.get_num_threads(),
    )
    torch.set_num_threads(2)
    try:
        with threadpool_limits(2, "blas"):
            with open_pool(simulation, 1):
                assert torch.get_num_threads() == 1 and threads_of_numpy() == {1}
            assert torch.get_num_threads() == 2 and threads_of_numpy() == {2}
    finally:
        torch.set_num_threads(before)


def test_on_a_gpu_there_is_one_process(monkeypatch):
    simulation = assemble(with_effective_rounds(config_of()), ProgressReporter(), three_site_digits())
    monkeypatch.setattr(type(simulation), "device", "meta")
    with open_pool(simulation, "auto") as pool:
        assert pool is None
    with (
        pytest.raises(ConfigError, match="workers: need the CPU, and this run uses meta"),
        open_pool(simulation, 2),
    ):
        pass


def test_fewer_workers_with_little_memory(monkeypatch):
    monkeypatch.setenv("FEDCOPL_WORKERS", "auto")
    monkeypatch.setattr(workers, "available_cores", lambda: 8)
    clip = load_clip("glyph-clip")
    each = working_memory(config_of(), clip, CLASSES)
    for free, count in ((None, 5), (100 * each, 5), (3.5 * each, 3), (0.1 * each, 1)):
        monkeypatch.setattr(workers, "free_memory", lambda free=free: free)
        assert workers_for(config_of(), clip, 5, CLASSES) == count
    assert workers_for(config_of(), clip, 5, CLASSES, 4) == 4
    assert workers_for(config_of("method=central"), clip, 5, CLASSES) == 1
