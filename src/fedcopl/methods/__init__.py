"""What is trained, averaged and kept: a file each, and a table of all.

A new method is a file here, its test, one line below, a row in docs/methods.md and a line in CHANGELOG.md.
"""

from collections.abc import Callable

from ..config import RunConfig
from ..errors import ConfigError
from ..labelers import choose_labeler
from ..published import is_as_published
from ..registry import Registry
from .base import Method
from .fedclip import fedclip
from .fedcopl import central, fedcopl, fedvpt, local, priors, zeroshot
from .fedotp import fedotp
from .fst import fst
from .pfedmoap import pfedmoap
from .pfedprompt import pfedprompt
from .promptfl import promptfl, promptprox
from .transclip import transclip

METHODS: Registry[Callable[[RunConfig], Method]] = Registry(
    "method",
    {
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
    },
)


def choose_method(config: RunConfig) -> Method:
    """Build the method of the setting `method`, with its options checked.

    Raises:
        ConfigError: The method or labeler is unknown, or settings contradict each other.
    """
    method = METHODS.find(config.method)(config)
    choose_labeler(config)
    _refuse_what_makes_no_sense(config)
    if not method.trains and config.labeler != "copl":
        raise ConfigError(
            f"labeler: {config.method} trains on no labels, so labeler={config.labeler} would change nothing"
        )
    return method


def run_title(config: RunConfig) -> str:
    """Name of what runs with these settings, for every table and page: method, labeler, and what is added to them.

    >>> from fedcopl.published import as_published
    >>> run_title(RunConfig(method="promptfl", labeler="fpl")), run_title(RunConfig())
    ('PromptFL + FPL + priors', 'FedCoPL + priors')
    >>> run_title(RunConfig.from_mapping(as_published(), "the paper"))
    'FedCoPL (as published)'
    """
    method, priors = choose_method(config), config.priors
    parts = [method.title]
    if config.options.get("labels") == "truth":
        parts.append("true labels")
    elif method.trains and not (method.is_ours and config.labeler == "copl"):
        parts.append(choose_labeler(config).title)
    if config.adapts:
        kinds = {
            "logit bias": priors.logit_bias,
            "label shift": priors.label_shift,
            "prototypes": priors.prototypes,
        }
        some = ", ".join(kind for kind, is_on in kinds.items() if is_on)
        parts.append("priors" if all(kinds.values()) else f"priors ({some})")
    return " + ".join(parts) + " (as published)" * (method.trains and is_as_published(config))


def priors_note(config: RunConfig) -> str | None:
    """One line where priors change a method of the literature, so that nobody takes the result for the method's."""
    method = choose_method(config)
    if method.is_ours or not config.adapts:
        return None
    off = " ".join(f"priors.{kind}=false" for kind in ("logit_bias", "label_shift", "prototypes"))
    return f"this is {run_title(config)}; {method.title} without priors: --as-published, or {off}"


def settled(config: RunConfig) -> RunConfig:
    """The settings as a run is played by them: a method that learns nothing from a second round has one."""
    return config.model_copy(update={"rounds": 1}) if choose_method(config).single_round else config


def _refuse_what_makes_no_sense(config: RunConfig) -> None:
    if config.method == "central" and config.options.get("labels") == "truth" and config.labeler != "copl":
        raise ConfigError(f"labeler: true labels need no labeler, so labeler={config.labeler} would change nothing")
    if config.method != "fedcopl" and config.sharing.aggregate != "visual":
        raise ConfigError(f"sharing.aggregate: is an ablation of fedcopl; {config.method} says itself what is averaged")
