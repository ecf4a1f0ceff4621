"""What users import, and what importing costs."""

import subprocess
import sys

import fedcopl


def test_public_names():
    assert sorted(fedcopl.__all__) == ["FedCoPLError", "RunConfig", "load_config", "simulate"]
    assert all(hasattr(fedcopl, name) for name in fedcopl.__all__)


def test_importing_is_light():
    heavy = "{'torch', 'matplotlib', 'flwr', 'sklearn', 'scipy', 'jinja2'}"
    code = f"import fedcopl, sys; loaded = {heavy} & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_line_is_light_too():
    code = "import fedcopl.cli, sys; assert not {'torch', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
