"""What rides with every question, so that each can be judged by itself: of which run, under which settings.

A site needs no memory of a handshake: whoever joins late, comes back or has lost its folder is told everything again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...config import RunConfig, by_full_name
from ...errors import ConfigError, RunFolderError
from ...files import make_private_folder, write_private

LOCAL = {  # each site's own business; the settings of the server say nothing about them
    "model": ("backbone", "activation", "device", "memory", "threads"),
    "data": ("path", "classes_file", "corrections", "window", "bands", "pages"),
}
Scalar = str | int | float | bool
SETTING, IMAGES, CLASSES = "settings.", "images", "classes"
PINNED = "terms.json"  # in the folder of a run at a site: what it began with


class Refused(Exception):
    """A question this site must not answer, and why. The server is told the text; notes added to it stay here."""


@dataclass(frozen=True)
class Terms:
    """On what terms a question is asked."""

    run: str  # which run: the same after a restart of the server
    attempt: int  # how many times the server was started for this run
    number: int  # of the site: names its random streams
    version: str  # of fedcopl
    classes: str  # how many, and the digest of their names in order
    model: str  # name and digest of the frozen model; what it is called may differ
    settings: Mapping[str, Scalar]  # flat, only what differs from the defaults

    def at(self, number: int) -> "Terms":
        """The same terms for one site."""
        return replace(self, number=number)

    def config(self) -> RunConfig:
        return config_from(self.settings, f"run {self.run}")


def terms_of(run: str, attempt: int, config: RunConfig, classes: Sequence[str], model: str) -> Terms:
    return Terms(run, attempt, 0, version("fedcopl"), classes_digest(classes), model, flat_settings(config))


def flat_settings(config: RunConfig) -> dict[str, Scalar]:
    """`section.key` -> value of every setting that differs from its default and is not a site's own business."""
    own = {f"{section}.{leaf}" for section, leaves in LOCAL.items() for leaf in leaves}
    changed = by_full_name(config.model_dump(exclude_defaults=True))
    return {name: value for name, value in changed.items() if name not in own}


def config_from(settings: Mapping[str, Any], origin: str) -> RunConfig:
    """The settings again, checked as those of a file are."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        section, dot, leaf = key.partition(".")
        if not dot:
            nested[key] = value
        elif isinstance(nested.setdefault(section, {}), dict):
            nested[section][leaf] = value
        else:
            raise ConfigError(f"{origin}: {section} is a setting and a section at once")
    return RunConfig.from_mapping(nested, origin)


def classes_digest(classes: Sequence[str]) -> str:
    """Two lists of classes with the same text here are the same list."""
    return f"{len(classes)} classes, {sha256(json.dumps(list(classes)).encode()).hexdigest()[:16]}"


def differences(terms: Terms, classes: str, model: str) -> list[str]:
    """Why a site must not answer on these terms; each line names both sides."""
    sides = [
        ("classes", terms.classes, classes),
        ("model", terms.model, model.split()[-1]),  # what its file is called here is nobody's business
    ]
    unlike = [(what, theirs, ours) for what, theirs, ours in sides if theirs.split()[-1:] != ours.split()[-1:]]
    if release_of(terms.version) != release_of(version("fedcopl")):
        unlike.insert(0, ("fedcopl", terms.version, version("fedcopl")))
    return [f"{what}: the server has {theirs}, this site has {ours}" for what, theirs, ours in unlike]


def release_of(version: str) -> str:
    """Versions of one release differ in their last number, by which neither messages nor results change.

    >>> release_of("0.1.0") == release_of("0.1.3"), release_of("0.1.0") == release_of("0.2.0")
    (True, False)
    """
    return ".".join(version.split(".")[:2])


def images_digest(names: Sequence[str], contents: Sequence[str]) -> str:
    """Two lists of images with the same text here are the same images, in the same order."""
    return f"{len(names)} images, {sha256(json.dumps([list(names), list(contents)]).encode()).hexdigest()[:16]}"


def hold_to(file: Path, terms: Terms, images: str) -> None:
    """Refuse a question on other terms, or about other images, than those the run began with: the first writes it down.

    Otherwise a server could switch the privacy of a run off, or have a site train with others' random streams; and
    pseudo labels, which belong to places in the list of images, would be trained on with the wrong ones.
    """
    now = {"number": terms.number, **{f"{SETTING}{key}": value for key, value in terms.settings.items()}}
    if not file.exists():
        kept = json.dumps({IMAGES: images, CLASSES: terms.classes, **now}, indent=1) + "\n"
        make_private_folder(file.parent)
        write_private(file, kept.encode())
    began = _began(file)
    before, classes = began.pop(IMAGES), began.pop(CLASSES)
    keys = [*began, *(key for key in now if key not in began)]
    changed = [f"{key} was {began.get(key)!r}, is {now.get(key)!r}" for key in keys if began.get(key) != now.get(key)]
    if began.get("number") != now["number"]:
        raise Refused(
            "this site has begun this run under another name or number; take the old name, or wait for the next"
        )
    if changed:
        raise Refused(f"the settings of this run have changed: {'; '.join(changed)}")
    if classes != terms.classes:
        raise Refused(f"the classes of this run have changed: it began with {classes}, now there are {terms.classes}")
    if before != images:
        refusal = Refused(
            "images: they are not those that this run began with; put them back, or wait for the next run"
        )
        refusal.add_note(f"it began with {before}; now there are {images}")  # how many may be more than a run tells
        raise refusal


def _began(file: Path) -> dict[str, Any]:
    try:
        began = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{file}: is damaged: {error}") from error
    missing = {IMAGES, CLASSES} - set(began)
    if missing:
        raise RunFolderError(f"{file}: is damaged: {min(missing)} is missing")
    return began
