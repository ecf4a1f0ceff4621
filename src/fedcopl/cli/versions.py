"""`fedcopl --version --verbose`: what is there, for a report of a bug and for people who wonder."""

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "numpy", "pillow", "tokenizers", "safetensors", "pydantic", "scikit-learn")
EXTRAS = {  # extra -> the packages that it brings
    "hub": ("huggingface-hub",),
    "parquet": ("pyarrow",),
    "datasets": ("datasets",),
    "tiff": ("tifffile", "imagecodecs"),
    "dicom": ("pydicom", "python-gdcm"),
    "heic": ("pillow-heif",),
    "flower": ("flwr",),
    "privacy": ("dp-accounting", "cryptography"),
    "web": ("starlette", "uvicorn"),
    "onnx": ("onnx", "onnxruntime"),
    "experiments": ("fedcopl-experiments",),
}


def installed_versions() -> Iterator[str]:
    """Python, the packages, and each extra with its packages, or that it is not installed."""
    from ..data.cache import default_folder

    yield f"{'python':<14}{platform.python_version()} on {platform.system()} {platform.machine()}"
    for package in PACKAGES:
        yield f"{package:<14}{_version(package) or 'missing'}"
    for extra, packages in EXTRAS.items():
        found = [f"{package} {_version(package)}" for package in packages if _version(package)]
        whole = len(found) == len(packages)
        yield f"{f'[{extra}]':<14}" + (", ".join(found) if whole else f"no: pip install 'fedcopl[{extra}]'")
    yield f"{'cache':<14}{default_folder()}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
