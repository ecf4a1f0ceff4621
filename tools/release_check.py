"""Build the wheel and the sdist, install each into a fresh environment, and run the demo.

.venv/bin/python tools/release_check.py        # `make release-check`; needs a package index, takes minutes

`tests/test_plain_install.py` tests the wheel in more detail in such an environment.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT, ROOT / "experiments")
NEEDED = ("fedcopl/demo.toml", "fedcopl/clip/glyph_clip/model.safetensors", "fedcopl/py.typed")
QUICK = ("rounds=1", "train.epochs=1", "model.threads=1")
# The environment of a user: without PYTHONPATH and settings of this program.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDCOPL"))}


def main() -> None:
    version = _pyproject(ROOT)["project"]["version"]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        wheel, _, sdist = build(scratch)
        check_contents(wheel)
        for package in (wheel, sdist):
            check_installed(package, scratch / package.suffix.lstrip("."), version)
    print(f"fedcopl {version}: wheel and sdist install and run")


def build(scratch: Path) -> tuple[Path, Path, Path]:
    """Build the wheels of fedcopl and of fedcopl-experiments, and the sdist of fedcopl.

    The build environment contains only the packages of `build-system.requires`, as pip's does.
    """
    dist = scratch / "dist"
    needed = {name for folder in PACKAGES for name in _pyproject(folder)["build-system"]["requires"]}
    hatchling = install(scratch / "builder", *sorted(needed)) / "hatchling"
    for folder in PACKAGES:
        run(hatchling, "build", "--target", "wheel", "--target", "sdist", "--directory", dist, cwd=folder)
    [package], [experiments] = dist.glob("fedcopl-*.whl"), dist.glob("fedcopl_experiments-*.whl")
    [sdist] = dist.glob("fedcopl-*.tar.gz")
    return package, experiments, sdist


def check_contents(wheel: Path) -> None:
    """Fail if a wheel lacks files of the demo or contains tests or tools."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in NEEDED if name not in names]
    unexpected = [name for name in names if name.split("/")[0] != "fedcopl" and ".dist-info" not in name]
    if missing or unexpected:
        raise SystemExit(f"{wheel.name}: lacks {missing}, should not contain {unexpected}")


def install(home: Path, *packages: str | Path) -> Path:
    """Install packages into a new environment with the newest dependencies that they allow; return its `bin`.

    The pip of this Python is used, because a pip in each environment takes seconds to install. Modules are compiled
    only when they are imported, because most modules of torch never are.
    """
    run(sys.executable, "-m", "venv", "--without-pip", home)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python")
    run(*pip, "install", "--quiet", "--disable-pip-version-check", "--no-compile", *packages)
    return home / "bin"


def check_installed(package: Path, home: Path, version: str) -> None:
    """Install a wheel or sdist into a new environment, outside the sources, and run the demo."""
    print(f"installing {package.name}", flush=True)
    fedcopl = install(home, package) / "fedcopl"
    printed = subprocess.run(
        [fedcopl, "--version"], check=True, capture_output=True, text=True, cwd=home, env=ENVIRONMENT
    ).stdout
    if printed.split() != ["fedcopl", version]:
        raise SystemExit(f"{package.name}: its version is {printed.strip()}")
    run(fedcopl, "run", *QUICK, "--out", home / "run", cwd=home)
    run(fedcopl, "run", "method=priors", "--out", home / "priors", cwd=home)


def _pyproject(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def run(*command: object, cwd: Path = ROOT) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, env=ENVIRONMENT)


if __name__ == "__main__":
    main()
