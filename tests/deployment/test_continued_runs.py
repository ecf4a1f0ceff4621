"""A federation that continues an earlier run, with a site that was in it and one that was not."""

import pytest

from deployment.toolbox import LoopGrid, NotingReporter, digit_sites
from fedcopl.config import RunConfig
from fedcopl.deployment.server.grid_transport import Timeouts
from fedcopl.deployment.server.rounds import PreparedServer, ServerPlan, serve
from fedcopl.deployment.site.pipeline import reply_to
from fedcopl.deployment.site.policies import Consent, _approval_by_file
from fedcopl.deployment.site.running_site import RunningSite, SiteOptions
from fedcopl.errors import ConfigError
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation.simulate import simulate

SETTINGS = {
    "rounds": 1,
    "train": {"epochs": 1, "holdout": 0.0},
    "model": {"threads": 1},
    "priors": {"logit_bias": False, "prototypes": False},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    digit_sites(root, 2, 24)
    return root


def run_of_sites(grid, data, out, previous_run=None):
    plan = ServerPlan(
        RunConfig.from_mapping(SETTINGS, "test"), data / "classes.txt", out, Timeouts(60, 1, 0.01), False, previous_run
    )
    return serve(grid, PreparedServer.prepare(plan), ProgressReporter())


def site_of(name, data, folder, progress):
    options = SiteOptions(
        name,
        data / "clients" / name,
        str(data / "classes.txt"),
        folder,
        {"threads": 1},
        consent=Consent(min_images=0),
    )
    return RunningSite(options, progress)


def answering(site):
    return lambda message: reply_to(message, lambda: site)


@pytest.mark.slow
def test_a_continued_deployment_equals_a_continued_simulation(data, tmp_path):
    progress = NotingReporter()
    sites = {name: site_of(name, data, tmp_path / name, progress) for name in ("site-a", "site-b")}
    grid = LoopGrid({name: answering(site) for name, site in sites.items()})
    first = run_of_sites(grid, data, tmp_path / "first")
    second = run_of_sites(grid, data, tmp_path / "second", tmp_path / "first")
    assert second.settings["previous_run"].split()[0] == first.run_id != second.run_id
    where = {"source": "folder", "path": str(data), "partition": "natural"}
    config = RunConfig.from_mapping({**SETTINGS, "data": where}, "test")
    simulate(config, tmp_path / "may")
    simulate(config, tmp_path / "june", previous_run=tmp_path / "may")
    assert (tmp_path / "second/prompts/server.safetensors").read_bytes() == (
        tmp_path / "june/prompts/server.safetensors"
    ).read_bytes()
    for name in sites:
        own = tmp_path / name / "runs" / second.run_id / "prompts/clients" / f"{name}.safetensors"
        assert own.read_bytes() == (tmp_path / "june/prompts/clients" / f"{name}.safetensors").read_bytes()
    assert not [note for note in progress.notes if "starts with new prompts" in note]

    # A site that has lost its folder reports that it was not in the previous run, and takes part.
    newcomer = site_of("site-b", data, tmp_path / "anew", progress)
    grid = LoopGrid({"site-a": answering(sites["site-a"]), "site-b": answering(newcomer)})
    third = run_of_sites(grid, data, tmp_path / "third", tmp_path / "second")
    assert third.rounds[0].sites == ("site-a", "site-b")
    assert f"this site was not in the run {second.run_id} and starts with new prompts" in progress.notes


def test_a_server_refuses_an_earlier_run_that_does_not_fit_before_any_site_joins(data, tmp_path):
    grid = LoopGrid({"site-a": answering(site_of("site-a", data, tmp_path / "a", NotingReporter()))})
    run_of_sites(grid, data, tmp_path / "first")
    (tmp_path / "fewer.txt").write_text("\n".join((data / "classes.txt").read_text().splitlines()[1:]))
    plan = ServerPlan(
        RunConfig.from_mapping(SETTINGS, "test"),
        tmp_path / "fewer.txt",
        tmp_path / "second",
        Timeouts(),
        previous_run=tmp_path / "first",
    )
    with pytest.raises(ConfigError, match="has the class 'zero', which is missing now"):
        PreparedServer.prepare(plan)


def test_accepted_settings_include_runs_that_continue_another(tmp_path):
    (tmp_path / "agreed.toml").write_text("rounds = 3")
    agreed, config = _approval_by_file(tmp_path / "agreed.toml"), RunConfig(rounds=3, previous_run="may 00")
    assert agreed("june", config) is None
    assert "rounds" in (agreed("june", RunConfig(rounds=4, previous_run="may 00")) or "")
