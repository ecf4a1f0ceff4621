"""Methods, one file each, and their registry.

A new method is a file here, its test, one line below, a row in docs/methods.md and a line in CHANGELOG.md.
"""

from collections.abc import Callable

from ..config import RunConfig, is_as_published
from ..errors import ConfigError
from ..labelers import choose_labeler
from ..registry import Registry
from .base import Method
from .bca import BCA
from .fedclip import FedCLIP
from .fedcopl import Central, FedCoPL, FedVPT, Local, PriorsOnly, ZeroShot
from .fedmvp import FedMVP
from .fedotp import FedOTP
from .fedpgp import FedPGP
from .fedpha import FedPHA
from .fedtpg import FedTPG
from .fst import FST
from .pfedmoap import PFedMoAP
from .pfedprompt import pfedprompt
from .promptfl import promptfl, promptprox
from .promptfolio import PromptFolio
from .stata import StatA
from .transclip import TransCLIP

METHODS: Registry[Callable[[RunConfig], Method]] = Registry(
    "method",
    {
        "fedcopl": FedCoPL,
        "promptfl": promptfl,
        "promptprox": promptprox,
        "pfedprompt": pfedprompt,
        "fedotp": FedOTP,
        "fedopt": FedOTP,  # the paper's spelling
        "local": Local,
        "central": Central,
        "zeroshot": ZeroShot,
        "priors": PriorsOnly,
        "fedvpt": FedVPT,
        "fedclip": FedCLIP,
        "pfedmoap": PFedMoAP,
        "fedtpg": FedTPG,
        "fedpgp": FedPGP,
        "promptfolio": PromptFolio,
        "fedpha": FedPHA,
        "fedmvp": FedMVP,
        "fst": FST,
        "transclip": TransCLIP,
        "stata": StatA,
        "bca": BCA,
    },
)


def choose_method(config: RunConfig) -> Method:
    """Build the method of the setting `method` and validate its options.

    Raises:
        ConfigError: The method or labeler is unknown, or settings contradict each other.
    """
    method = METHODS.find(config.method)(config)
    choose_labeler(config)
    if config.method == "central" and config.options.get("labels") == "truth" and config.labeler != "copl":
        raise ConfigError(f"labeler: options.labels=truth needs no labeler; remove labeler={config.labeler}")
    if config.method != "fedcopl" and config.sharing.aggregate != "visual":
        raise ConfigError(f"sharing.aggregate: is for method=fedcopl only; remove it to use method={config.method}")
    if not method.trains and config.labeler != "copl":
        raise ConfigError(f"labeler: {config.method} does not train; remove labeler={config.labeler}")
    return method


def run_title(config: RunConfig) -> str:
    """Return the title of a run in tables and pages: method, labeler and priors.

    >>> from fedcopl.config import as_published
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
    if config.uses_priors:
        kinds = {"logit bias": priors.logit_bias, "label shift": priors.label_shift, "prototypes": priors.prototypes}
        enabled = ", ".join(kind for kind, is_on in kinds.items() if is_on)
        parts.append("priors" if all(kinds.values()) else f"priors ({enabled})")
    return " + ".join(parts) + " (as published)" * (method.trains and is_as_published(config))


def priors_note(config: RunConfig) -> str | None:
    """Return a note if a method of the literature runs with priors; None otherwise."""
    method = choose_method(config)
    if method.is_ours or not config.uses_priors:
        return None
    off = " ".join(f"priors.{kind}=false" for kind in ("logit_bias", "label_shift", "prototypes"))
    return f"this is {run_title(config)}; {method.title} without priors: --as-published, or {off}"


def with_effective_rounds(config: RunConfig) -> RunConfig:
    """Return the settings with the effective number of rounds: one for a method that does not train."""
    return config if choose_method(config).trains else config.model_copy(update={"rounds": 1})
