"""`study.toml`: the operator's plan of a study."""

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
from ..wire.addresses import check_site_name, with_port
from ..wire.terms import classes_digest, flat_settings

EXAMPLE = """\
# A study of several sites: fedcopl provision study.toml makes one package for each.
name = "study"
address = ["server.example"]  # how sites reach the server: they connect to the first
port = 9092
classes = "classes.txt"       # one name per line; relative to this file
settings = "settings.toml"    # of the runs, for every site to approve; default settings if omitted
key_days = 365                # validity of a site's key

[sites]
hospital = "packed"           # its key is made here and is in its package: keep that secret
clinic = "own"                # it makes its own key and returns the public key, site.pub
"""


class StudyPlan(Section):
    """The settings of `study.toml`."""

    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[\w.-]+$")]
    address: Annotated[list[str], Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)] = 9092
    classes: str = "classes.txt"
    settings: str = ""
    key_days: Annotated[int, Field(ge=1, le=3650)] = 365
    sites: Annotated[dict[str, Literal["packed", "own"]], Field(min_length=1)]

    @property
    def server(self) -> str:
        """Address that sites connect to."""
        return with_port(self.address[0], self.port)


class PreparedStudy:
    """A plan with its files read: the common content of all packages of the study."""

    def __init__(self, plan: StudyPlan, config: RunConfig, classes: tuple[str, ...], clip: Clip):
        self.plan, self.config, self.class_names = plan, config, classes
        self.classes, self.model = classes_digest(classes), backbone_name(config.model.backbone, clip)
        self.settings = flat_settings(config)
        self.classes_text = "\n".join(classes) + "\n"


def read_plan(file: Path) -> StudyPlan:
    """Read a plan; all its errors are in one line."""
    if not file.exists():
        raise ConfigError(f"{file}: there is no such study plan; fedcopl provision {file} --example writes one")
    try:
        plan = StudyPlan.model_validate(read_settings(file))
    except ValidationError as error:
        wrong = explained((dict(one) for one in error.errors()), _unknown)
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
    """Read a plan and the files that it names, relative to its folder."""
    plan, here = read_plan(file), file.parent
    config = settled(load(here / plan.settings) if plan.settings else RunConfig())
    classes = clean_all(read_classes(here / plan.classes), here / plan.classes)
    return PreparedStudy(plan, config, classes, build_clip(config.model))
