"""The commands that this package adds to `fedcopl`."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
COMMANDS = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]["fedcopl.commands"]
HEAVY = ("torch", "matplotlib", "flwr", "sklearn", "scipy", "numpy")


def test_two_commands_are_installed():
    assert set(COMMANDS) == {"reproduce", "results"}


@pytest.mark.parametrize("target", COMMANDS.values(), ids=COMMANDS)
def test_command_is_installed_with_help(target):
    module, name = target.split(":")
    assert getattr(import_module(module), name).__doc__


@pytest.mark.parametrize("target", COMMANDS.values(), ids=COMMANDS)
def test_command_loads_without_torch(target):
    # Every `fedcopl --help` imports it.
    script = f"import sys, {target.split(':')[0]}; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.split() == []
