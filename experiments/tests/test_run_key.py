"""The keys of runs."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest

from fedcopl.config import RunConfig, setting_names
from fedcopl.errors import ConfigError
from fedcopl_experiments import run_key as keys
from fedcopl_experiments.run_key import PACKAGE, code_version, run_key

FREE = {("name",), ("model", "memory"), ("model", "threads")}  # cannot change a result
CANDIDATES = (
    "other",
    "iid",
    "gelu",
    "cpu",
    "bf16",
    "both",
    "promptfl",
    "fpl",
    True,
    False,
    0,
    1,
    2,
    3,
    0.25,
    0.75,
    0.9,
)


def changed(setting):
    """Return the settings with one changed to another valid value."""
    for value in (*literals(setting), *CANDIDATES):
        settings = {setting[0]: {setting[1]: value}} if len(setting) == 2 else {setting[0]: value}
        with suppress(ConfigError):
            config = RunConfig.from_mapping(settings, "test")
            if config != RunConfig():
                return config
    raise AssertionError(f"no other value for {setting}")


def literals(setting):
    section = RunConfig if len(setting) == 1 else RunConfig.model_fields[setting[0]].annotation
    return [value for value in get_args(section.model_fields[setting[-1]].annotation) if isinstance(value, str)]


@pytest.mark.parametrize("setting", list(setting_names()), ids=".".join)
def test_every_setting_that_can_change_a_result_is_in_the_key(setting):
    assert (run_key(changed(setting)) == run_key(RunConfig())) == (setting in FREE)


def test_options_are_in_the_key_and_their_order_is_not():
    one, two, other = (
        run_key(RunConfig(options=options)) for options in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3})
    )
    assert one == two != other


def test_the_code_is_in_the_key(monkeypatch):
    before = run_key(RunConfig())
    monkeypatch.setattr(keys, "code_version", lambda: "0.1.0+other")
    assert run_key(RunConfig()) != before


def hashed():
    return {path.relative_to(PACKAGE).as_posix() for path in keys._deciding_files()}


def test_every_module_of_a_simulation_is_hashed():
    # These modules store, show or name results; every other module that a simulation imports must be hashed.
    harmless = {"__init__.py", "errors.py", "files.py", "run/folder.py", "run/progress_reporter.py"}
    script = "import sys, fedcopl.simulation.simulate; print(*(m.__file__ for m in sys.modules.values() if m and " + (
        "m.__name__.startswith('fedcopl')), sep='\\n')"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    loaded = {Path(line).relative_to(PACKAGE).as_posix() for line in printed.split()}
    assert {"algorithm/allocate.py", "simulation/simulate.py", "methods/learner.py", "rng.py"} <= loaded
    assert {name for name in loaded - hashed() - harmless if not name.startswith("report/")} == set()


def test_pages_and_commands_are_not_hashed():
    assert not {name.split("/")[0] for name in hashed()} & {"cli", "report", "review", "watch", "api"}
    assert not any(name.startswith(("deployment", "flower_app", "run/folder")) for name in hashed())
    assert {"clip/glyph_clip/model.safetensors", "run/build.py", "run/record.py", "run/loop.py"} <= hashed()
    assert not any(name.endswith(".pyc") for name in hashed())


def test_excluded_parts_exist():
    # The successor of a renamed part would be hashed.
    for name in keys.WITHOUT_EFFECT:
        assert any(path.with_suffix("").name == Path(name).name for path in (PACKAGE / name).parent.iterdir()), name


def test_a_change_of_one_byte_is_another_version(tmp_path, monkeypatch):
    def version_with(name, text):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
        return code_version.__wrapped__()

    monkeypatch.setattr(keys, "PACKAGE", tmp_path)
    first = version_with("rng.py", "x")
    for name in sorted(keys.WITHOUT_EFFECT):
        assert version_with(f"{name}.py", "x") == version_with(f"{name}/deeper.html.jinja", "x") == first
    assert (
        version_with("demo.toml", "x")
        == version_with("errors.py", "x")
        == version_with("algorithm/a.pyc", "x")
        == first
    )
    second = version_with("algorithm/new.py", "")
    third = version_with("rng.py", "y")
    fourth = version_with("new_part.py", "")
    assert len({first, second, third, fourth}) == 4
