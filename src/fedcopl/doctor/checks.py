"""Checks of machine, keys, device, settings, model, images, wall time and server, and safe fixes."""

import difflib
import os
import platform
import re
import shlex
import shutil
import socket
import ssl
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ..clip.device import choose_arithmetic, threads_for
from ..clip.frozen_clip import Clip, fingerprint, load_clip
from ..clip.known_models import BUILT_IN, RELEASES, find_cached
from ..config import Data, Model, RunConfig, load
from ..data.cache import Progress, default_folder
from ..data.catalog import load_dataset
from ..data.dataset import Dataset, Skipped, clean_class_name, find_classes
from ..data.folder import CLIENTS, SPLITS, folders_in, images_below, is_folder, misspelt_split
from ..data.images import UNREADABLE, digests
from ..data.overview import survey
from ..data.parallel import available_cores, free_memory
from ..data.partitioning import check_partition
from ..deployment.addresses import connect, proxy_to, strip_credentials
from ..errors import ConfigError, FedCoPLError, printable
from ..methods import with_effective_rounds
from ..plurals import counted
from ..progress import format_duration
from ..simulation.time_estimate import estimate_time

_GIGABYTE = 10**9
_LOW_MEMORY, _LOW_DISK = 2 * _GIGABYTE, _GIGABYTE
_TIMEOUT = 5.0  # seconds for the reply of a server
_EXTRAS = {  # a module of each extra, and its purpose
    "hub": ("huggingface_hub", "fetching CLIP models by name"),
    "parquet": ("pyarrow", "tables in Parquet"),
    "onnx": ("onnxruntime", "fedcopl export --onnx"),
    "flower": ("flwr", "federations across machines"),
    "web": ("starlette", "pages in a browser"),
}
_SETTINGS = "settings.toml"
_CERTIFICATE = "ca.pem"  # marks the folder of a site or server
_LONG_RUN = 600  # seconds
_MAX_NAMES = 5  # names in a finding
_IF_INTENDED = "nothing, if that is intended"  # the advice of a note that may be no error


class _Finding(NamedTuple):
    """Result of one check."""

    level: Literal["ok", "note", "problem"]  # with a problem a run cannot start
    subject: str
    detail: str
    advice: str = ""


_ok, _note, _problem = partial(_Finding, "ok"), partial(_Finding, "note"), partial(_Finding, "problem")


def diagnose(
    path: Path | None = None,
    *,
    server: str | None = None,
    certificate: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Iterator[_Finding]:
    """Check this machine, the settings, the folder of a site or server, and a server."""
    yield from _check_machine(Path.cwd())
    if path is not None and (path / _CERTIFICATE).is_file():
        yield from _check_expiry(path)
    file = settings_file(path)
    if file is None:
        yield from _check_device(RunConfig().model)
    else:
        yield from _check_study(file, progress)
    if server is not None:
        yield from _check_server(server, certificate)


def settings_file(path: Path | None) -> Path | None:
    """Return the settings file that `path` names, or the settings.toml in the folder that it names.

    Without a path, or for the folder of a site or server, it is ./settings.toml, or None if there is no such file.
    """
    if path is None or (path / _CERTIFICATE).is_file():
        return Path(_SETTINGS) if Path(_SETTINGS).is_file() else None
    file = path / _SETTINGS if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        hint = f"check images with: fedcopl data check {shlex.quote(str(path))}"
        raise ConfigError(f"{path}: there is no settings.toml in it; write one with fedcopl new, or {hint}")
    if not file.is_file():
        raise ConfigError(f"{path}: there is no such file or folder; name settings.toml, or the folder it is in")
    return file


def apply_fixes(path: Path | None = None) -> Iterator[str]:
    """Rename folders with misspelt names of splits if the correct name is unused; yield a line for each one."""
    file = settings_file(path)
    data = Data() if file is None else load(file).data
    root = Path(data.path).expanduser()
    for site in _site_folders(root) if data.source == "folder" and root.is_dir() else []:
        for folder, split in _misspelt_splits(site):
            if not (site / split).exists():
                folder.rename(site / split)
                yield f"{folder} is now called {split}"


def _check_study(file: Path, progress: Progress) -> Iterator[_Finding]:
    try:
        config = load(file)
    except ConfigError as error:
        yield _problem("settings", str(error), "fix the setting named above; docs/settings.md lists all settings")
        return
    yield _ok("settings", str(file))
    yield from _check_device(config.model)
    clip = yield from _check_model(config)
    dataset = yield from _check_data(config, file, progress)
    if clip is not None and dataset is not None:
        yield from _check_time(config, clip, dataset)


def _check_model(config: RunConfig) -> Generator[_Finding, None, Clip | None]:
    """Check and return the CLIP model; None if it is not on this machine yet, or cannot be loaded."""
    name = config.model.backbone
    activation = None if config.model.activation == "auto" else config.model.activation
    try:
        if name in RELEASES and find_cached(name, verify=True) is None:
            advice = "a run downloads it; without a network: docs/models.md names the folder for its files"
            yield _note("model", f"{name} is not on this machine yet", advice)
            return None
        clip = load_clip(name, activation=activation)
    except FedCoPLError as error:
        yield _problem("model", str(error), "set model.backbone to a known name, or to a model's folder or file")
        return None
    yield _ok("model", f"{name}, images of {clip.image_size} x {clip.image_size}, fingerprint {fingerprint(clip)}")
    if name in BUILT_IN and config.data.source != "digits":
        advice = "set model.backbone=ViT-B/32 for photographs"
        yield _note("model", f"{name} only recognises printed characters", advice)
    return clip


def _check_data(config: RunConfig, file: Path, progress: Progress) -> Generator[_Finding, None, Dataset | None]:
    """Decode every image and return the data set of readable images, or None; `file` is the settings file."""
    yield from _check_folders(config.data)
    try:
        dataset = load_dataset(config.data)
        check_partition(dataset, config.data)
        surveyed = survey(dataset, progress)
    except FedCoPLError as error:
        path, settings_folder = config.data.path, file.parent
        is_below_settings = path and not Path(path).exists() and (settings_folder / path).exists()
        advice = "fix the file or folder named above; docs/data.md shows the layouts"
        if is_below_settings:
            advice = f"paths are relative to the current folder, so first: cd {settings_folder}"
        yield _problem("data", str(error), advice)
        return None
    usable = surveyed.dataset
    images = f"{len(usable.train):,} training and {counted(len(usable.test), 'test image')}"
    yield _ok("data", f"{counted(len(usable.classes), 'class')}, {images}")
    yield from _list_sites(usable)
    yield from _list_skipped(usable.skipped, file)
    yield from (_note("data", remark, _IF_INTENDED) for remark in surveyed.notes)
    yield from _check_counts(usable)
    return usable


def _site_folders(root: Path) -> list[Path]:
    """Return the folder of each site under clients/; the root itself if there is no clients/."""
    clients = root / CLIENTS
    return sorted(folders_in(clients)) if is_folder(clients) else [root]


def _misspelt_splits(site: Path) -> list[tuple[Path, str]]:
    """Return the folders of a site whose names are close to train or test, each with that split."""
    folders = [(folder, misspelt_split(folder.name)) for folder in sorted(folders_in(site))]
    return [(folder, split) for folder, split in folders if split is not None]


def _check_folders(data: Data) -> Iterator[_Finding]:
    """Check the names of the folders of sites, splits and classes."""
    root = Path(data.path).expanduser()
    if data.source != "folder" or not root.is_dir():
        return
    site_folders = _site_folders(root)
    for site in site_folders:
        for folder, split in _misspelt_splits(site):
            advice = f"rename it to {split}, or run: fedcopl doctor --fix"
            if (site / split).exists():
                advice = f"move its images into {split}/"
            name = printable(folder.relative_to(root).as_posix())
            yield _note("folders", f"{name}/ is not read; its name is close to {split}/", advice)
    for site in site_folders if is_folder(root / CLIENTS) else ():
        if not any(images_below(site, site, [])):
            advice = f"put its images into {site / SPLITS[0]}, or remove it"
            yield _note("site", f"{printable(site.name)!r} holds no image", advice)
    try:
        listed = find_classes(data.classes_file, root)
    except FedCoPLError:
        return  # `_check_data` reports it
    if listed is None:
        return
    classes = [clean_class_name(name) for name in listed.names]
    class_folders = _class_folders(site_folders, set(classes))
    for name in sorted(class_folders - set(classes))[:_MAX_NAMES]:
        close_matches = difflib.get_close_matches(name, classes, n=1)
        advice = f"add it to {listed.origin}, or move its images elsewhere"
        if close_matches:
            advice = f"rename it to {close_matches[0]!r}"
        yield _problem("classes", f"the folder {name!r} is no class of {listed.origin}", advice)
    missing = [name for name in classes if name not in class_folders]
    if missing and set(classes) & class_folders:
        more = f" and {len(missing) - _MAX_NAMES} more" if len(missing) > _MAX_NAMES else ""
        names = ", ".join(missing[:_MAX_NAMES]) + more
        yield _note(
            "classes", f"no folder for {names}", "add their folders, or ignore this if no image has these classes"
        )


def _class_folders(site_folders: Sequence[Path], classes: set[str]) -> set[str]:
    """Return the names of class folders in each site's train/ and test/, or in its own folder if it has neither.

    Of folders next to images, none counts unless at least one has the name of a class.
    """
    class_folders: set[str] = set()
    for site in site_folders:
        for parent in [site / split for split in SPLITS if is_folder(site / split)] or [site]:
            names = {clean_class_name(folder.name) for folder in folders_in(parent)}
            if names & classes or not any(images_below(parent, parent, [], recursive=False)):
                class_folders |= names
    return class_folders


def _list_sites(dataset: Dataset) -> Iterator[_Finding]:
    """Report the number of images of each site."""
    if dataset.train.clients is None:
        return
    sites = len(dataset.clients)
    train = np.bincount(dataset.train.clients, minlength=sites)
    test = np.zeros(sites, int) if dataset.test.clients is None else np.bincount(dataset.test.clients, minlength=sites)
    for name, images, tested in zip(dataset.clients, train, test, strict=True):
        detail = f"{printable(name)!r}: {images:,} training and {counted(tested, 'test image')}"
        if images:
            yield _ok("site", detail)
        else:
            yield _problem("site", detail, "add training images, or remove the folder of the site")


def _list_skipped(skipped: Sequence[Skipped], settings: Path) -> Iterator[_Finding]:
    """Report the skipped files, one finding per missing package and one for all others."""
    by_install_command: dict[str, list[Skipped]] = defaultdict(list)
    for name, reason in skipped:
        command = re.search(r"pip install 'fedcopl\[\w+\]'", reason)
        by_install_command[command[0] if command else ""].append((name, reason))
    for install_command, files in by_install_command.items():
        (name, reason), count = files[0], len(files)
        skipped_files = counted(count, "file is skipped,", "files are skipped, for example")
        advice = install_command or ("fix or remove them" if count > 1 else "fix or remove it")
        list_all = f"; fedcopl data check {shlex.quote(str(settings))} --all lists them" if count > 1 else ""
        yield _note("data", f"{skipped_files} {name!r}: {reason}", advice + list_all)


def _check_counts(dataset: Dataset) -> Iterator[_Finding]:
    """Report sites with fewer images than classes, a list of a single class, and images that several sites have."""
    owners, stored = dataset.train.clients, dataset.train.images
    image_counts = {"all sites together": len(dataset.train)}
    if owners is not None:
        counts = np.bincount(owners, minlength=len(dataset.clients))
        image_counts = {f"site {name!r}": int(count) for name, count in zip(dataset.clients, counts, strict=True)}
    for site, count in image_counts.items():
        if count < len(dataset.classes):
            detail = f"{site}: {counted(count, 'image')} for {counted(len(dataset.classes), 'class')}"
            yield _note("data", detail, "add images, or remove classes without images from the list")
    if len(dataset.classes) < 2:
        yield _problem("data", "there is only one class", "list at least two classes in classes.txt")
    if owners is None:
        return
    holders: dict[str, set[int]] = defaultdict(set)
    for content, owner in zip(digests(stored), owners.tolist(), strict=True):
        if not content.startswith(UNREADABLE):
            holders[content].add(owner)
    shared = sum(len(sites) > 1 for sites in holders.values())
    if shared:
        yield _note("data", f"{counted(shared, 'image is', 'images are')} at more than one site", _IF_INTENDED)


def _check_time(config: RunConfig, clip: Clip, dataset: Dataset) -> Iterator[_Finding]:
    """Estimate wall time and memory of the run, and suggest shorter runs if it takes long."""
    cost, free = estimate_time(config, clip, dataset), free_memory()
    if free is not None and cost.memory > free:
        detail = f"{cost}; only {free / _GIGABYTE:.1f} GB are free"
        yield _note("cost", detail, "lower train.batch, or use a smaller model")
    elif cost.seconds > _LONG_RUN:
        priors_only = with_effective_rounds(
            config.model_copy(update={"method": "priors", "labeler": "copl", "options": {}})
        )
        two_rounds = config.model_copy(update={"rounds": 2, "train": config.train.model_copy(update={"epochs": 1})})
        suggestions = [
            f"{settings} (about {format_duration(estimate_time(shorter, clip, dataset).seconds)})"
            for settings, shorter in (("method=priors", priors_only), ("rounds=2 epochs=1", two_rounds))
        ]
        yield _note("cost", str(cost), f"for a first try add {' or '.join(suggestions)}: priors need no training")
    else:
        yield _ok("cost", str(cost))


def _check_machine(results_folder: Path) -> Iterator[_Finding]:
    """Check Python, packages, memory, the disk of the results, and the cache folder."""
    yield _ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    required = [line for line in requires("fedcopl") or [] if "extra ==" not in line]
    missing = [name for line in required if not _is_installed(name := re.split(r"[<>=!~;\[ (]", line)[0])]
    if missing:
        yield _problem("packages", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield _ok("packages", f"fedcopl {version('fedcopl')}, torch {version('torch')}, numpy {version('numpy')}")
    for extra, (module, purpose) in _EXTRAS.items():
        if find_spec(module) is None:
            yield _note(f"extra {extra}", f"not installed; needed for: {purpose}", f"pip install 'fedcopl[{extra}]'")
        else:
            yield _ok(f"extra {extra}", purpose)
    free = free_memory()
    if free is None:
        yield _ok("memory", "this system does not report free memory")
    elif free < _LOW_MEMORY:
        advice = "close other programs, or lower model.memory and train.batch"
        yield _note("memory", f"{free / _GIGABYTE:.1f} GB free", advice)
    else:
        yield _ok("memory", f"{free / _GIGABYTE:.1f} GB free")
    yield _check_disk("disk", results_folder, "free some space, or work in another folder")
    advice = "free some space (fedcopl cache clear), or name another folder in FEDCOPL_CACHE"
    yield _check_disk("cache folder", default_folder(), advice)


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _check_disk(subject: str, path: Path, advice: str) -> _Finding:
    """Check write access and free space of a folder, or of its nearest existing parent."""
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK):
        return _problem(subject, f"{path} cannot be written", "choose a folder that you may write to")
    detail = f"{path}: {free / _GIGABYTE:.1f} GB free"
    return _problem(subject, detail, advice) if free < _LOW_DISK else _ok(subject, detail)


def _check_device(model: Model) -> Iterator[_Finding]:
    """Check device, precision and threads of the settings."""
    try:
        chosen = choose_arithmetic(model.device, model.precision)
    except FedCoPLError as error:
        yield _problem("device", str(error), "change the setting named above")
        return
    yield _ok("device", f"{chosen.device.type}, {chosen.precision}")
    if model.threads > available_cores():
        detail = f"model.threads is {model.threads}, but there are {available_cores()} cores"
        yield _note("threads", detail, "lower model.threads")
    else:
        yield _ok("threads", f"{threads_for(model) or 'as torch chooses'} of {available_cores()} cores")


def _check_expiry(folder: Path) -> Iterator[_Finding]:
    """Report when the keys and certificates in the folder of a site or server expire, and how to renew them."""
    from ..deployment.packages import expiries

    try:
        expiring = list(expiries(folder))
    except FedCoPLError as error:
        yield _problem("keys and certificates", str(error), "fix or replace the file named above")
        return
    for expiry in expiring:
        if expiry.days_left < 0:
            yield _problem(expiry.subject, str(expiry), expiry.renewal)
        elif expiry.is_near:
            yield _note(expiry.subject, str(expiry), expiry.renewal)
        else:
            yield _ok(expiry.subject, str(expiry))


def _check_server(address: str, certificate: Path | None) -> Iterator[_Finding]:
    """Connect to a server, `host:port` or `[::1]:port`, and check its certificate."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--server: should be HOST:PORT, not {address!r}")
    host = host.removeprefix("[").removesuffix("]")
    try:
        connection = connect(host, int(port), _TIMEOUT)
    except OSError as error:
        advice = "check the address and the firewall, and that the server is running"
        yield _problem("server", f"{address} cannot be reached: {error.strerror or error}", advice)
        return
    with connection:
        proxy = proxy_to(host)
        through = f", through the proxy {strip_credentials(proxy)}" if proxy else ""
        yield _ok("server", f"{address} is reachable{through}")
        yield _check_tls(connection, host, certificate)


def _check_tls(connection: socket.socket, host: str, certificate: Path | None) -> _Finding:
    try:
        context = ssl.create_default_context(cafile=certificate)
        with context.wrap_socket(connection, server_hostname=host) as secured:
            return _ok("encryption", f"{secured.version()}, with the expected certificate")
    except ssl.SSLCertVerificationError as error:
        advice = "ask the operator of the server for ca.pem, and name it with --ca"
        return _problem("encryption", f"the certificate is not trusted: {error.verify_message}", advice)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        advice = "start the server with TLS, or check the port"
        return _problem("encryption", f"no TLS: {reason}", advice)
