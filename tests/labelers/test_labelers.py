"""The registry of labelers, and a labeler from a plug-in file in whole runs."""

import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcopl.cli import app
from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError, naming_arguments
from fedcopl.labelers import LABELERS, choose_labeler
from fedcopl.messages import Select
from fedcopl.methods import choose_method
from fedcopl.plugins import load_plugin, load_plugins
from fedcopl.registry import PLUGINS_VARIABLE, Registry
from fedcopl.simulation.simulate import simulate
from few_sites import config_of, three_site_digits

PLUGIN = """
import numpy as np
from fedcopl.algorithm.select import select
from fedcopl.config import Section
from fedcopl.labelers import Labeler

class Options(Section):
    top: int = 2

class TopFew(Labeler):
    title, summary, Options = "Top few", "each client trains on a few images", Options

    def quota(self, counts, images, request):
        return np.full_like(counts, self.options.top)

    def select(self, log_probs, quota):
        return select(log_probs, quota)

LABELERS = {"top-few": TopFew}
"""


def config(**settings):
    return RunConfig.from_mapping(settings, "test")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    monkeypatch.setenv(PLUGINS_VARIABLE, "")
    file = tmp_path / "top_few.py"
    file.write_text(PLUGIN)
    yield file
    LABELERS.pop("top-few", None)


def test_the_built_in_labelers():
    assert list(LABELERS) == ["copl", "fpl", "cpl", "upl", "threshold", "soft"]


@pytest.mark.parametrize(
    ("settings", "cooperative"),
    [({}, True), ({"labels": {"global_allocation": False}}, False), ({"labeler": "fpl"}, False)],
)
def test_only_copl_with_global_allocation_is_cooperative(settings, cooperative):
    assert choose_labeler(config(**settings)).cooperative is cooperative


def test_copl_without_sums_has_its_counts_as_quota():
    counts = np.array([3, 1])
    quota = choose_labeler(config()).quota(counts, 10, Select(0, 0, None, 2))
    assert quota.tolist() == [3, 1]


def test_fpl_may_label_an_image_once_per_class():
    assert choose_labeler(config(labeler="fpl")).labels_per_image(7) == 7
    assert choose_labeler(config(labeler="cpl")).labels_per_image(7) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"labeler": "cpi"},
            "labeler: unknown labeler 'cpi' .known: copl, fpl, cpl, upl, threshold, soft.; did you mean cpl?",
        ),
        ({"labeler": "mine"}, "unknown labeler 'mine' .*; if it comes from a file, add --plugin FILE.py"),
        ({"labeler_options": {"top": 3}}, "labeler_options.top: copl has no such option .it has: none."),
    ],
)
def test_errors_in_the_labeler_settings_are_one_clear_line(settings, message):
    with pytest.raises(ConfigError, match=message):
        choose_method(config(**settings))


def test_a_labeler_from_a_file_runs_with_its_options(plugin, tmp_path):
    load_plugin(plugin)
    settings = config_of("labeler=top-few", "labeler_options.top=1", "rounds=1", "method=local")
    simulate(settings, tmp_path / "run", workers=2, dataset=three_site_digits())
    outcome = (tmp_path / "run" / "results.json").read_text()
    assert '"labeler": "top-few"' in outcome
    with pytest.raises(ConfigError, match=r"labeler_options\.top: should be a whole number"):
        choose_labeler(config(labeler="top-few", labeler_options={"top": "many"}))


def test_child_processes_find_the_file_in_the_environment(plugin):
    load_plugin(plugin)
    assert os.environ[PLUGINS_VARIABLE] == str(plugin)
    del LABELERS["top-few"]
    load_plugins()
    assert "top-few" in LABELERS


def test_a_command_loads_the_file_of_its_option(plugin):
    assert CliRunner().invoke(app, ["methods", "--plugin", str(plugin)]).exit_code == 0
    assert "top-few" in LABELERS


def test_a_command_loads_the_files_of_the_environment(plugin, monkeypatch):
    monkeypatch.setenv(PLUGINS_VARIABLE, str(plugin))
    assert CliRunner().invoke(app, ["methods"]).exit_code == 0
    assert "top-few" in LABELERS


@pytest.mark.parametrize("command", ["run", "server", "join", "predict", "export", "drift", "review", "reproduce"])
def test_commands_that_build_a_method_take_a_file(command):
    assert "--plugin FILE.py" in CliRunner().invoke(app, [command, "--help"]).output


def test_the_error_in_python_names_load_plugin():
    with pytest.raises(ConfigError, match=r"first call fedcopl\.load_plugin"), naming_arguments():
        choose_labeler(config(labeler="mine"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("LABELERS = {}", "has neither METHODS nor LABELERS"),
        ("raise ValueError('broken')", "cannot be loaded: ValueError: broken"),
        ("syntax error", "cannot be loaded: SyntaxError"),
        ("LABELERS = {'copl': int}", "there is already a labeler called 'copl'"),
    ],
)
def test_the_error_of_an_invalid_plugin_is_one_clear_line(plugin, text, message):
    plugin.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_plugin(plugin)


@pytest.mark.parametrize("name", ["missing.py", "folder"])
def test_a_missing_plugin_file_is_refused(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="there is no such file"):
        load_plugin(tmp_path / name)


def test_an_entry_point_is_found_by_its_name(monkeypatch):
    class Entry:
        def load(self):
            return len

    def entry_points(group, name):
        return [Entry()] if (group, name) == ("fedcopl.labelers", "far") else []

    monkeypatch.setattr("fedcopl.registry.entry_points", entry_points)
    registry = Registry("labeler", {"near": max})
    assert registry.find("far") is len
    with pytest.raises(ConfigError):
        registry.find("nowhere")


def test_plugins_are_given_as_str_or_path(plugin):
    load_plugins([str(plugin), Path(plugin)])
    assert "top-few" in LABELERS
