"""Build the wheel and the sdist, install each into a fresh environment, and use it as a newcomer would.

.venv/bin/python tools/release_check.py        # `make release-check`; needs a package index, takes minutes
"""

import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = ("fedcopl/demo.toml", "fedcopl/clip/glyph_clip/model.safetensors", "fedcopl/py.typed")
QUICK = ("rounds=1", "train.epochs=1", "model.threads=1")


def main() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "dist"
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, ROOT)
        run(sys.executable, "-m", "build", "--sdist", "--outdir", built, ROOT)
        [wheel], [sdist] = built.glob(f"fedcopl-{version}-*.whl"), built.glob(f"fedcopl-{version}.tar.gz")
        look_inside(wheel)
        for made in (wheel, sdist):
            use(made, Path(scratch) / made.suffix.lstrip("."), version)
    print(f"fedcopl {version}: wheel and sdist install and run")


def look_inside(wheel: Path) -> None:
    """What the demo needs is in it, and nothing of tests or tools."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in NEEDED if name not in names]
    strange = [name for name in names if name.split("/")[0] not in ("fedcopl",) and ".dist-info" not in name]
    if missing or strange:
        raise SystemExit(f"{wheel.name}: lacks {missing}, should not hold {strange}")


def use(made: Path, home: Path, version: str) -> None:
    """In an environment of its own, away from the sources."""
    print(f"installing {made.name}", flush=True)
    run(sys.executable, "-m", "venv", home)
    run(home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", made)
    fedcopl = home / "bin" / "fedcopl"
    said = subprocess.run([fedcopl, "--version"], check=True, capture_output=True, text=True, cwd=home).stdout.split()
    if said != ["fedcopl", version]:
        raise SystemExit(f"{made.name}: says that it is {' '.join(said)}")
    run(fedcopl, "run", *QUICK, "--out", home / "run", cwd=home)
    run(fedcopl, "run", "method=priors", "--out", home / "priors", cwd=home)


def run(*command: object, cwd: Path = ROOT) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


if __name__ == "__main__":
    main()
