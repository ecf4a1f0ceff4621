"""What is trained, averaged and kept: a file each, and a table of all.

A new method is a file here, its test, one line below, a row in docs/methods.md and a line in CHANGELOG.md.
"""

import difflib
from collections.abc import Callable, Mapping

from ..config import RunConfig
from ..errors import ConfigError
from .base import Method
from .fedclip import fedclip
from .fedcopl import central, fedcopl, fedvpt, local, priors, zeroshot
from .fedotp import fedotp
from .fst import fst
from .pfedmoap import pfedmoap
from .pfedprompt import pfedprompt
from .promptfl import promptfl, promptprox
from .transclip import transclip

METHODS: Mapping[str, Callable[[RunConfig], Method]] = {
    "fedcopl": fedcopl,
    "promptfl": promptfl,
    "promptprox": promptprox,
    "pfedprompt": pfedprompt,
    "fedotp": fedotp,
    "fedopt": fedotp,  # the paper's spelling
    "local": local,
    "central": central,
    "zeroshot": zeroshot,
    "priors": priors,
    "fedvpt": fedvpt,
    "fedclip": fedclip,
    "pfedmoap": pfedmoap,
    "fst": fst,
    "transclip": transclip,
}


def choose_method(config: RunConfig) -> Method:
    """The method of the setting `method`, with its own options read and checked."""
    if config.method not in METHODS:
        near = difflib.get_close_matches(config.method, METHODS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"method: unknown method {config.method!r} (known: {', '.join(METHODS)}){hint}")
    _refuse_what_makes_no_sense(config)
    method = METHODS[config.method](config)
    if not method.trains and config.labeler != "copl":
        raise ConfigError(
            f"labeler: {config.method} trains on no labels, so labeler={config.labeler} would change nothing"
        )
    return method


def settled(config: RunConfig) -> RunConfig:
    """The settings as a run is played by them: a method that learns nothing from a second round has one."""
    return config.model_copy(update={"rounds": 1}) if choose_method(config).plays_once else config


def _refuse_what_makes_no_sense(config: RunConfig) -> None:
    if config.method == "central" and config.options.get("labels") == "truth" and config.labeler != "copl":
        raise ConfigError(f"labeler: true labels need no labeler, so labeler={config.labeler} would change nothing")
    if config.method != "fedcopl" and config.sharing.aggregate != "visual":
        raise ConfigError(f"sharing.aggregate: is an ablation of fedcopl; {config.method} says itself what is averaged")
