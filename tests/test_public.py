"""What users import, and what importing costs."""

import subprocess
import sys

import pytest

import fedcopl

HEAVY = "{'torch', 'matplotlib', 'flwr', 'sklearn', 'scipy', 'jinja2'}"


def test_public_names():
    classes = ["Classifier", "FedCoPLError", "Federation", "Result", "RunConfig", "Site"]
    wanted = [*classes, "load_config", "load_plugin", "simulate"]
    assert sorted(fedcopl.__all__) == wanted
    assert all(hasattr(fedcopl, name) for name in fedcopl.__all__)
    assert set(wanted) <= set(dir(fedcopl))


def test_a_name_that_is_none():
    with pytest.raises(AttributeError, match="has no attribute 'Federations'"):
        _ = fedcopl.Federations


def test_importing_is_light():
    code = f"import fedcopl, sys; loaded = {HEAVY} & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_line_is_light_too():
    code = "import fedcopl.cli, sys; assert not {'torch', 'matplotlib', 'onnx', 'onnxruntime'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
