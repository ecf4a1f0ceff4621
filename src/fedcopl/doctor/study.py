"""Checks of a run's model, images and expected time."""

import re
import shlex
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..clip.formats.hub import BUILT_IN, RELEASES, check_sum, find_or_download, openai_cache
from ..clip.frozen_clip import Clip, fingerprint, load_clip
from ..config import RunConfig
from ..data.cache import Progress
from ..data.catalog import load_dataset
from ..data.dataset import Dataset, Skipped
from ..data.images import UNREADABLE, StoredImages, digests
from ..data.overview import survey
from ..data.parallel import free_memory
from ..data.partitioning import check_partition
from ..errors import FedCoPLError
from ..methods import settled
from ..plurals import counted
from ..progress import in_time
from ..simulation.time_estimate import estimate_time
from .findings import Finding, note, ok, problem
from .sites import check_folders, list_sites

GIGABYTE = 10**9
LONG = 600  # seconds


def check_model(config: RunConfig) -> Generator[Finding, None, Clip | None]:
    """Check and return the CLIP model; nothing is downloaded, a run does that."""
    name = config.model.backbone
    if name in RELEASES and not _is_here(name):
        do = "a run downloads it; without a network see docs/models.md for where to put its files"
        yield note("model", f"{name} is not on this machine yet", do)
        return None
    activation = None if config.model.activation == "auto" else config.model.activation
    try:
        _refuse_other_files(name)
        clip = load_clip(name, activation=activation)
    except FedCoPLError as error:
        yield problem("model", str(error), "set model.backbone to a known name, or to a model's folder or file")
        return None
    yield ok("model", f"{name}, images of {clip.image_size} x {clip.image_size}, fingerprint {fingerprint(clip)}")
    if name in BUILT_IN and config.data.source != "digits":
        yield note("model", f"{name} knows printed characters only", "for photographs set model.backbone=ViT-B/32")
    return clip


def _is_here(name: str) -> bool:
    release = RELEASES[name]
    if all((release.snapshot / file).is_file() for file in (release.weights, release.other_files[0])):
        return True
    return release.original is not None and (openai_cache() / release.original.name).is_file()


def _refuse_other_files(name: str) -> None:
    """Raise ModelError if the weights of a known model are not the published ones."""
    if name not in RELEASES:
        return
    release, found = RELEASES[name], find_or_download(name)
    if found == release.snapshot and release.sha256:
        check_sum(found / release.weights, release.sha256)


def check_data(config: RunConfig, file: Path, progress: Progress) -> Generator[Finding, None, Dataset | None]:
    """Decode every image once and return the usable data set; `file` is the settings file."""
    yield from check_folders(config.data)
    try:
        dataset = load_dataset(config.data)
        check_partition(dataset, config.data)
        found = survey(dataset, progress)
    except FedCoPLError as error:
        yield problem("data", str(error), _what_to_do(config.data.path, file.parent))
        return None
    usable = found.dataset
    images = f"{len(usable.train):,} training and {counted(len(usable.test), 'test image')}"
    yield ok("data", f"{counted(len(usable.classes), 'class')}, {images}")
    yield from list_sites(usable)
    yield from _skipped(usable.skipped, file)
    yield from (note("data", remark, "nothing, if that is meant") for remark in found.notes)
    yield from _few(usable)
    yield from _between_sites(usable)
    return usable


def _what_to_do(path: str, home: Path) -> str:
    if path and not Path(path).exists() and (home / path).exists():
        return f"paths are relative to the current folder, so first: cd {home}"
    return "fix the file or folder named above; docs/data.md shows the layouts"


def _skipped(skipped: Sequence[Skipped], settings: Path) -> Iterator[Finding]:
    """Report the skipped files, one finding per missing package and one for all others."""
    by_package: dict[str, list[Skipped]] = defaultdict(list)
    for name, why in skipped:
        missing = re.search(r"pip install 'fedcopl\[\w+\]'", why)
        by_package[missing[0] if missing else ""].append((name, why))
    for package, files in by_package.items():
        (name, why), many = files[0], len(files)
        left = counted(many, "file is skipped,", "files are skipped, for example")
        do = package or ("fix or remove them" if many > 1 else "fix or remove it")
        listed = f"; fedcopl data check {shlex.quote(str(settings))} --all lists them" if many > 1 else ""
        yield note("data", f"{left} {name!r}: {why}", do + listed)


def _few(dataset: Dataset) -> Iterator[Finding]:
    """Report sites with fewer images than classes."""
    owners = dataset.train.clients
    held = {"all sites together": len(dataset.train)}
    if owners is not None:
        counts = np.bincount(owners, minlength=len(dataset.clients))
        held = {f"site {name!r}": int(count) for name, count in zip(dataset.clients, counts, strict=True)}
    for who, count in held.items():
        if count < len(dataset.classes):
            remark = f"{who}: {counted(count, 'image')} for {counted(len(dataset.classes), 'class')}"
            yield note("data", remark, "add images, or leave out classes that cannot occur")
    if len(dataset.classes) < 2:
        yield problem("data", "there is only one class", "name at least two in classes.txt")


def _between_sites(dataset: Dataset) -> Iterator[Finding]:
    owners, stored = dataset.train.clients, dataset.train.images
    if owners is None or not isinstance(stored, StoredImages):
        return
    shared = shared_between(digests(stored, {})[0], owners.tolist())
    if shared:
        remark = f"{counted(shared, 'image is', 'images are')} at more than one site"
        yield note("data", remark, "nothing, if that is meant")


def shared_between(contents: Sequence[str], owners: Sequence[int]) -> int:
    """Count the distinct images that at least two sites hold."""
    holders: dict[str, set[int]] = defaultdict(set)
    for content, owner in zip(contents, owners, strict=True):
        if not content.startswith(UNREADABLE):
            holders[content].add(owner)
    return sum(len(sites) > 1 for sites in holders.values())


def check_time(config: RunConfig, clip: Clip, dataset: Dataset) -> Iterator[Finding]:
    """Estimate wall time and memory of the run, and name shorter runs where it takes long."""
    run, free = estimate_time(config, clip, dataset), free_memory()
    if free is not None and run.memory > free:
        yield note(
            "cost", f"{run}; only {free / GIGABYTE:.1f} GB are free", "lower train.batch, or use a smaller model"
        )
    elif run.seconds > LONG:
        untrained = settled(config.model_copy(update={"method": "priors", "labeler": "copl", "options": {}}))
        once = config.model_copy(update={"rounds": 2, "train": config.train.model_copy(update={"epochs": 1})})
        offers = [
            f"{typed} (about {in_time(estimate_time(shorter, clip, dataset).seconds)})"
            for typed, shorter in (("method=priors", untrained), ("rounds=2 epochs=1", once))
        ]
        yield note("cost", str(run), f"for a first try add {' or '.join(offers)}: priors need no training")
    else:
        yield ok("cost", str(run))
