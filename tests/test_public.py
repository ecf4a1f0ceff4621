"""Public names of the package, and the modules that an import loads."""

import subprocess
import sys

import pytest

import fedcopl

HEAVY = "{'torch', 'matplotlib', 'flwr', 'sklearn', 'scipy', 'jinja2'}"


def test_public_names():
    classes = ["Classifier", "FedCoPLError", "Federation", "Result", "RunConfig", "Site"]
    expected = [*classes, "load_config", "load_plugin", "simulate"]
    assert sorted(fedcopl.__all__) == expected
    assert all(hasattr(fedcopl, name) for name in fedcopl.__all__)
    assert set(expected) <= set(dir(fedcopl))


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="has no attribute 'Federations'"):
        _ = fedcopl.Federations


def test_importing_the_package_loads_no_heavy_module():
    code = f"import fedcopl, sys; loaded = {HEAVY} & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_command_line_loads_no_heavy_module():
    code = "import fedcopl.cli, sys; assert not {'torch', 'matplotlib', 'onnx', 'onnxruntime'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
