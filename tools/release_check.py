"""Build the wheel and the sdist, install each into a fresh environment, and use it as a newcomer would.

.venv/bin/python tools/release_check.py        # `make release-check`; needs a package index, takes minutes

`tests/test_plain_install.py` tries more of the wheel with the same environment.
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
# What a user's shell does not have: sources on the path of Python, and settings of this program.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDCOPL"))}


def main() -> None:
    version = _pyproject(ROOT)["project"]["version"]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        wheel, _, sdist = build(scratch)
        look_inside(wheel)
        for made in (wheel, sdist):
            use(made, scratch / made.suffix.lstrip("."), version)
    print(f"fedcopl {version}: wheel and sdist install and run")


def build(scratch: Path) -> tuple[Path, Path, Path]:
    """Build the wheels of fedcopl and of fedcopl-experiments, and the sdist of fedcopl.

    The environment that builds them contains only what `build-system.requires` names, as pip's does.
    """
    dist = scratch / "dist"
    needed = {name for folder in PACKAGES for name in _pyproject(folder)["build-system"]["requires"]}
    hatchling = install(scratch / "builder", *sorted(needed)) / "hatchling"
    for folder in PACKAGES:
        run(hatchling, "build", "--target", "wheel", "--target", "sdist", "--directory", dist, cwd=folder)
    [package], [experiments] = dist.glob("fedcopl-*.whl"), dist.glob("fedcopl_experiments-*.whl")
    [sdist] = dist.glob("fedcopl-*.tar.gz")
    return package, experiments, sdist


def look_inside(wheel: Path) -> None:
    """Refuse a wheel that lacks what the demo needs, or that holds tests or tools."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in NEEDED if name not in names]
    strange = [name for name in names if name.split("/")[0] not in ("fedcopl",) and ".dist-info" not in name]
    if missing or strange:
        raise SystemExit(f"{wheel.name}: lacks {missing}, should not hold {strange}")


def install(home: Path, *packages: str | Path) -> Path:
    """Install packages into a new environment with the newest dependencies that they allow; return its `bin`.

    The pip is the one of this Python, because a copy in each environment takes seconds. Modules are compiled when they
    are imported: most of those of torch never are.
    """
    run(sys.executable, "-m", "venv", "--without-pip", home)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python")
    run(*pip, "install", "--quiet", "--disable-pip-version-check", "--no-compile", *packages)
    return home / "bin"


def use(made: Path, home: Path, version: str) -> None:
    """Install a wheel or sdist into its own environment, away from the sources, and run the demo."""
    print(f"installing {made.name}", flush=True)
    fedcopl = install(home, made) / "fedcopl"
    printed = subprocess.run(
        [fedcopl, "--version"], check=True, capture_output=True, text=True, cwd=home, env=ENVIRONMENT
    ).stdout
    if printed.split() != ["fedcopl", version]:
        raise SystemExit(f"{made.name}: its version is {printed.strip()}")
    run(fedcopl, "run", *QUICK, "--out", home / "run", cwd=home)
    run(fedcopl, "run", "method=priors", "--out", home / "priors", cwd=home)


def _pyproject(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def run(*command: object, cwd: Path = ROOT) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, env=ENVIRONMENT)


if __name__ == "__main__":
    main()
