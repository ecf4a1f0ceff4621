"""The terms of a request: its run, settings, classes and model, sent with every request.

There is no handshake to remember: a site that joins late, reconnects or has lost its folder gets everything again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..config import RunConfig, by_full_name
from ..errors import ConfigError
from ..files import make_private_folder, reading, write_private

LOCAL = {  # set by each site, not by the server
    "model": ("backbone", "activation", "device", "memory", "threads"),
    "data": ("path", "classes_file", "corrections", "window", "bands", "pages"),
}
_Scalar = str | int | float | bool
SETTING, _IMAGES, _CLASSES = "settings.", "images", "classes"
PINNED = "terms.json"  # in the folder of a run at a site: the terms of its first request


class Refused(Exception):
    """The site refuses a request. The text is sent to the server; notes added to the exception stay at the site."""


@dataclass(frozen=True)
class Terms:
    """The run of a request, and the settings, classes and model on which the server and a site must agree."""

    run: str  # id of the run; a restart of the server keeps it
    attempt: int  # number of starts of the server for this run
    number: int  # of the site; names its random streams
    version: str  # of fedcopl
    classes: str  # number of classes, and the digest of their names in order
    model: str  # name and digest of the frozen model; only the digests are compared
    settings: Mapping[str, _Scalar]  # flat; those that differ from the defaults

    def for_site(self, number: int) -> "Terms":
        """Return the terms for the site with this number."""
        return replace(self, number=number)

    def config(self) -> RunConfig:
        return config_from(self.settings, f"run {self.run}")


def terms_of(run: str, attempt: int, config: RunConfig, classes: Sequence[str], model: str) -> Terms:
    """Return the terms of a run for the site with number 0; see `Terms.for_site`."""
    return Terms(run, attempt, 0, version("fedcopl"), classes_digest(classes), model, flat_settings(config))


def flat_settings(config: RunConfig) -> dict[str, _Scalar]:
    """Return `section.key` -> value for the settings of the server that differ from their defaults."""
    own = {f"{section}.{leaf}" for section, leaves in LOCAL.items() for leaf in leaves}
    changed = by_full_name(config.model_dump(exclude_defaults=True))
    return {name: value for name, value in changed.items() if name not in own}


def config_from(settings: Mapping[str, Any], origin: str) -> RunConfig:
    """Return the validated config of flat settings, `section.key` -> value; errors name their `origin`."""
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
    """Return the number of classes and a digest of their names in order."""
    return f"{len(classes)} classes, {sha256(json.dumps(list(classes)).encode()).hexdigest()[:16]}"


def differences(terms: Terms, classes: str, model: str) -> list[str]:
    """Return a line for each incompatibility of the server with this site; it names the values of both."""
    own, digest = version("fedcopl"), model.split()[-1]  # the name of the site's model file is not sent to the server
    sides = [
        ("fedcopl", terms.version, own, terms.version.split(".")[:2] == own.split(".")[:2]),  # patches are compatible
        ("classes", terms.classes, classes, terms.classes == classes),
        ("model", terms.model, digest, terms.model.split()[-1:] == [digest]),
    ]
    return [f"{name}: the server has {theirs}, this site has {ours}" for name, theirs, ours, same in sides if not same]


def images_digest(names: Sequence[str], contents: Sequence[str]) -> str:
    """Return the number of images and a digest of their names and contents in order."""
    return f"{len(names)} images, {sha256(json.dumps([list(names), list(contents)]).encode()).hexdigest()[:16]}"


def check_pinned(file: Path, terms: Terms, images: str) -> None:
    """Raise `Refused` if terms or images differ from those at the first request of the run, which are stored in `file`.

    Otherwise a server could switch off the privacy of a run, or have a site train with the random streams of another
    site; and pseudo labels, which are stored by position in the list of images, would be assigned to other images.
    """
    now = {"number": terms.number, **{f"{SETTING}{key}": value for key, value in terms.settings.items()}}
    if not file.exists():
        first = json.dumps({_IMAGES: images, _CLASSES: terms.classes, **now}, indent=1) + "\n"
        make_private_folder(file.parent)
        write_private(file, first.encode())
    with reading(file):
        before = dict(json.loads(file.read_text(encoding="utf-8")))
        images_before, classes_before = before.pop(_IMAGES), before.pop(_CLASSES)
    keys = dict.fromkeys([*before, *now])
    changed = [f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in keys if before.get(key) != now.get(key)]
    if before.get("number") != now["number"]:
        raise Refused(
            "this site began this run under another name or number; use the old name, or wait for the next run"
        )
    if changed:
        raise Refused(f"the settings of this run have changed: {'; '.join(changed)}")
    if classes_before != terms.classes:
        raise Refused(f"the classes of this run have changed: they were {classes_before}, and are {terms.classes}")
    if images_before != images:
        refusal = Refused("images: not those that this run began with; restore them, or wait for the next run")
        refusal.add_note(f"it began with {images_before}; now there are {images}")  # the count may be private
        raise refusal
