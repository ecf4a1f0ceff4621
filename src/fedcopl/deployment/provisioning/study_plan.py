"""`study.toml`: what an operator says of a study before anybody joins."""

import difflib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ...clip.frozen_clip import Clip
from ...config import RunConfig, Section, load, read_settings
from ...config_errors import explained
from ...data.dataset import clean_all, read_classes
from ...errors import ConfigError
from ...methods import settled
from ...run.build import backbone_name, build_clip
from ..certificates import check_addresses
from ..wire.addresses import with_port
from ..wire.site_names import check_site_name
from ..wire.terms import classes_digest, flat_settings

EXAMPLE = """\
# A study of several sites: fedcopl provision study.toml makes one file to hand over to each.
name = "study"
address = ["server.example"]  # how sites reach the server: the first is the one they call
port = 9092
classes = "classes.txt"       # one name a line; beside this file
settings = "settings.toml"    # of the runs, for every site to approve; without it the defaults
key_days = 365                # how long a site's key is good for

[sites]
hospital = "packed"           # its key is made here and lies in its package: keep that secret
clinic = "own"                # it makes its own key and hands its public half, site.pub, back
"""


class StudyPlan(Section):
    """The settings of `study.toml`, checked as a whole."""

    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[\w.-]+$")]
    address: Annotated[list[str], Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)] = 9092
    classes: str = "classes.txt"
    settings: str = ""
    key_days: Annotated[int, Field(ge=1, le=3650)] = 365
    sites: Annotated[dict[str, Literal["packed", "own"]], Field(min_length=1)]

    @property
    def server(self) -> str:
        """What sites call."""
        return with_port(self.address[0], self.port)


class PreparedStudy:
    """A plan with its files read: what every package of the study says alike."""

    def __init__(self, plan: StudyPlan, config: RunConfig, classes: tuple[str, ...], clip: Clip):
        self.plan, self.config, self.class_names = plan, config, classes
        self.classes, self.model = classes_digest(classes), backbone_name(config.model.backbone, clip)
        self.settings = flat_settings(config)
        self.classes_text = "\n".join(classes) + "\n"


def read_plan(file: Path) -> StudyPlan:
    """The plan in a file; every mistake of it in one line."""
    if not file.exists():
        raise ConfigError(f"{file}: there is no such plan of a study; fedcopl provision {file} --example writes one")
    try:
        plan = StudyPlan.model_validate(read_settings(file))
    except ValidationError as error:
        wrong = explained((dict(mistake) for mistake in error.errors()), _unknown)
        raise ConfigError(f"{file}: {'; '.join(f'{name}: {why}' for name, why in wrong.items())}") from error
    check_addresses(plan.address, f"{file}: address")
    for name in plan.sites:
        check_site_name(name, f"{file}: sites")
        if name == "server":
            raise ConfigError(f"{file}: sites: no site can be called 'server'")
    return plan


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, StudyPlan.model_fields, n=1)
    return "a study has no such setting" + (f"; did you mean {near[0]}?" if near else "")


def prepare_study(file: Path) -> PreparedStudy:
    """Read what the plan names: paths count from the plan's own folder."""
    plan, here = read_plan(file), file.parent
    config = settled(load(here / plan.settings) if plan.settings else RunConfig())
    classes = clean_all(read_classes(here / plan.classes), here / plan.classes)
    return PreparedStudy(plan, config, classes, build_clip(config.model))
