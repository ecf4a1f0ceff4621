"""Settings of a run, validated when read.

All values are scalars in sections, so that settings can be sent as flat `section.key = value` pairs.
"""

import difflib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from .config_errors import describe_errors
from .errors import ConfigError, has_control_characters
from .files import MAX_SETTINGS, parse_toml, read_limited

_Options = TypeVar("_Options", bound="Section")
_Level = Annotated[float, Field(ge=0, le=1)]
_Joined = Annotated[str, BeforeValidator(lambda given: " | ".join(map(str, given)) if type(given) is list else given)]


class Section(BaseModel):
    """A section of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _no_control_characters(cls, value: Any) -> Any:
        if isinstance(value, str) and has_control_characters(value):  # a terminal would execute escape sequences
            raise ValueError("has a control character")
        return value


class Data(Section):
    """The images, and in a simulation their partition over the clients."""

    source: str = "digits"
    """name of the data set, see `fedcopl data list`"""
    path: str = ""
    """folder, manifest or hub name of the images; the built-in digits need none"""
    classes_file: str = ""
    """class names, one per line; empty: `classes.txt` in the folder of the images, if there is one"""
    corrections: str = ""
    """file with labels of an expert, written by `fedcopl review --export`; these images are always trained on"""
    label_column: str = ""
    """for `huggingface`: the column of labels, if there are several"""
    window: str | float = "file"
    """intensity window of images of more than 8 bits: `file` (its own range), `type`, `0:4095` or `1%:99%`"""
    bands: str | int = ""
    """bands of a multi-band TIFF to use as red, green and blue, counted from 1, as in `4,3,2`"""
    pages: Literal["first", "middle", "all"] = "first"
    """page of a TIFF or DICOM file with several pages; `all`: one image per page"""
    clients: int = Field(10, ge=1)
    """number of simulated clients, K"""
    partition: Literal["dirichlet", "quantity", "iid", "natural"] = "dirichlet"
    """how the images are split over the clients; `natural`: by the data set's own clients, without `clients`"""
    beta: float = Field(0.1, gt=0)
    """Dirichlet concentration: the lower, the fewer classes a client holds"""
    classes_per_client: int = Field(0, ge=0)
    """for `quantity`: number of classes of each client, s; 0: ceil(0.2 C)"""
    min_train: int = Field(10, ge=1)
    """for `dirichlet`: minimum number of training images of a client, if there are enough images"""


class Model(Section):
    """The frozen CLIP and its trainable prompts."""

    backbone: str = "glyph-clip"
    """name, folder or file of the CLIP model"""
    activation: Literal["auto", "quick_gelu", "gelu"] = "auto"
    """activation function of a weights file that does not name it; auto: OpenAI's quick_gelu"""
    template: _Joined = ""
    """zero-shot sentence with {} for the class name, or several separated by |; empty: that of the data set"""
    visual_prompts: int = Field(5, ge=0)
    """prompt vectors at the input of each prompted vision block"""
    visual_depth: Literal["all-but-last", "all"] | int = "all-but-last"
    """number of vision blocks with prompts, counted from the first"""
    text_prompts: int = Field(16, ge=0)
    """context vectors before the class name"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """device; auto: a GPU if there is one"""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """precision of the frozen encoders; lower ones are faster on some hardware"""
    memory: float = Field(4.0, ge=0)
    """GB of embedded images kept in memory; other images are embedded from the cache each time"""
    threads: int = Field(0, ge=0)
    """CPU threads; 0: one for the built-in model and in workers, otherwise as torch chooses; above 1: no workers"""


class LabelSettings(Section):
    """Cooperative pseudo labelling."""

    refresh_every: int = Field(5, ge=1)
    """rounds between two refreshes of the pseudo labels, Q"""
    confidence_filter: bool = True
    """count only confident images"""
    confidence_quantile: float = Field(0.5, ge=0, lt=1)
    """an image is confident above this quantile of its client's confidences (tau_1)"""
    entropy_filter: bool = True
    """count only images of low entropy"""
    entropy_quantile: float = Field(0.5, ge=0, lt=1)
    """an image has low entropy below the quantile 1 - `entropy_quantile` of its client's entropies (tau_2)"""
    global_allocation: bool = True
    """balance the classes over all clients; off: each client selects as many images as it counted"""
    budget: Literal["exact", "ceil"] = "exact"
    """M = S / C as in the paper, or rounded up first as in the authors' code"""
    unseen: Literal["grow", "none"] = "grow"
    """selected images of a class without confident images at any client: growing with the refreshes, or none"""
    candidates: Literal["argmax", "any"] = "argmax"
    """candidates for a class: the images predicted as this class, or all images (the paper's wording)"""
    per_class: int = Field(16, ge=1)
    """for `fpl` and `cpl`: images of each class at each client, K"""
    among: Literal["all", "confident"] = "all"
    """for `fpl` and `cpl`: images that can be selected: all, or those confident by `confidence_quantile`"""
    capacity: Literal["fixed", "grow"] = "fixed"
    """for `fpl` and `cpl`: K constant, or growing with the refreshes as in GRIP"""
    fpl_rule: Literal["argmax", "column", "leaderboard"] = "argmax"
    """for `fpl`: K among the images predicted as the class, among all, or the authors' leaderboard"""
    cpl_alpha: _Level | Literal["auto"] = "auto"
    """for `cpl`: quantile level within an image; auto: its authors' value for the data set"""
    cpl_beta: _Level | Literal["auto"] = "auto"
    """for `cpl`: quantile level within a class; auto as above"""
    cpl_keep_likeliest: bool = False
    """for `cpl`: an image's most probable class is always a candidate"""
    cpl_loss: Literal["cc", "rc", "lw", "gce"] = "cc"
    """for `cpl`: loss: -log of the summed probability of the candidates (cc), or another one of its authors"""
    cpl_targets: Literal["sets", "soft"] = "sets"
    """for `cpl`: weights of the candidates: equal, or their probabilities at the refresh"""


class Priors(Section):
    """Label-free calibration by logit bias, class priors of the clients, and prototypes."""

    logit_bias: bool = True
    """estimate the model's bias towards classes over all clients, and remove it"""
    class_prior: str = ""
    """file with the class prior over all clients, if it is known: a table `class,share`, or JSON"""
    label_shift: bool = True
    """estimate each client's class prior if the evidence supports it; it is never sent"""
    prototypes: bool = True
    """estimate class means and covariance from sums of image features over all clients"""


class TrainSettings(Section):
    """Local training at a client."""

    epochs: int = Field(10, ge=1)
    """local epochs per round, E"""
    batch: int = Field(32, ge=1)
    """images per step"""
    lr: float = Field(0.3, gt=0)
    """maximum learning rate; for prompts in the units of `step`"""
    step: Literal["relative", "plain"] = "relative"
    """scale of SGD steps on a prompt: relative to the length of the prompt, or plain as published"""
    momentum: float = Field(0.9, ge=0, lt=1)
    """momentum of SGD; the optimiser is new for each client and round"""
    weight_decay: float = Field(0.005, ge=0)
    """weight decay of the prompts, multiplied by the learning rate in each step"""
    init: Literal["neutral", "random"] = "neutral"
    """initial prompts: neutral (predictions do not change), or random as published"""
    init_std: float = Field(0.02, ge=0)
    """for `init = random`: standard deviation of the initial prompts"""
    decay_to: Literal["init", "zero"] = "init"
    """target of weight decay: the initial prompts, or zero as published"""
    clip_norm: float = Field(1.0, ge=0)
    """maximum norm of the gradient, in the units of `step`; 0: no clipping, as published"""
    holdout: float = Field(0.2, ge=0, lt=1)
    """share of a client's images kept from training for the hold-out check; 0: no check, as published"""
    patience: int = Field(2, ge=0)
    """with priors: stop training after N rounds in a row without gain on the held-out images; 0: never, as published"""
    schedule: Literal["refresh", "run"] = "refresh"
    """the cosine restarts at each refresh, or runs once over all rounds"""


class Sharing(Section):
    """Participation of clients, and aggregation."""

    participation: float = Field(1.0, gt=0, le=1)
    """share of the clients that train in a round, R"""
    aggregate: Literal["visual", "text", "both", "none"] = "visual"
    """which prompts the server averages; the others never leave their client"""
    robust: Literal["mean", "trimmed", "median", "krum"] = "mean"
    """aggregation rule: mean weighted by images, or robust to a few Byzantine sites, see `docs/threat-model.md`"""
    bounded: bool = True
    """clip a site's weight and update by ten times the median of the others; off: as published"""


class Evaluation(Section):
    """Evaluation on labelled test images. It never feeds back into training."""

    every: int = Field(1, ge=1)
    """rounds between two evaluations; the last round is always evaluated"""
    everywhere: bool = True
    """also evaluate each client's model on all clients' test images (accuracy `global`); simulation only"""


class Privacy(Section):
    """Privacy settings. `docs/privacy.md` has the protection and cost of each."""

    secure_aggregation: bool = False
    """the server learns only the sums over the sites: class counts, prompts, loss"""
    min_sites: int = Field(2, ge=2)
    """for `secure_aggregation`: minimum number of sites in a sum"""
    threshold: float = Field(0.6, gt=0.5, le=1)
    """for `secure_aggregation`: share of the sites that is enough to unmask a sum"""
    noise_multiplier: float = Field(0.0, ge=0)
    """site-level differential privacy: standard deviation of the noise, in units of the clips; 0: none"""
    count_clip: float = Field(50.0, gt=0)
    """for `noise_multiplier`: L2 norm to which a site's class counts are clipped"""
    update_clip: float = Field(0.1, gt=0)
    """for `noise_multiplier`: L2 norm to which a site's update of the shared prompts is clipped"""
    delta: float = Field(1e-5, gt=0, lt=1)
    """for `noise_multiplier`: delta of (epsilon, delta)-differential privacy"""


class RunConfig(Section):
    """All settings of one run; `AS_PUBLISHED` has the published values of those whose default differs.

    >>> config = RunConfig.from_mapping({"rounds": 5, "data": {"clients": 3}}, "example")
    >>> config.rounds, config.data.clients, config.method
    (5, 3, 'fedcopl')
    >>> RunConfig.from_mapping({"round": 5}, "example")
    Traceback (most recent call last):
    fedcopl.errors.ConfigError: example: round: unknown setting; did you mean rounds?
    """

    name: str = Field("run", min_length=1, pattern=r"^[\w.-]+$")
    """name of the run and its folder"""
    seed: int = Field(1, ge=0)
    """seed of every random stream: partition, initial prompts, order of images, participants"""
    rounds: int = Field(20, ge=1)
    """communication rounds, T"""
    previous_run: str = ""
    """name and digest of the finished run that this one continues; `--from` sets it, see `docs/living-study.md`"""
    method: str = "fedcopl"
    """method: the arrays that are trained and averaged, see `fedcopl methods`"""
    labeler: str = "copl"
    """selection of pseudo labels: `copl` (the paper), `fpl` (most confident of each class), `cpl` (candidate sets)"""
    data: Data = Data()
    model: Model = Model()
    labels: LabelSettings = LabelSettings()
    priors: Priors = Priors()
    train: TrainSettings = TrainSettings()
    sharing: Sharing = Sharing()
    evaluation: Evaluation = Evaluation()
    privacy: Privacy = Privacy()
    options: dict[str, str | int | float | bool] = Field(default={}, validate_default=False)
    """options of the method, such as `options.mu=0.5`; each method declares its own"""
    labeler_options: dict[str, str | int | float | bool] = Field(default={}, validate_default=False)
    """options of the labeler, such as `labeler_options.confidence=0.9`; each labeler declares its own"""

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any], origin: str, overridden: Collection[str] = ()) -> Self:
        """Validate settings.

        Args:
            origin: The source of the settings, for the error message.
            overridden: Full names of the settings from the command line, for the error message.

        Raises:
            ConfigError: A setting is invalid; the message has all errors in one line.
        """
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise ConfigError(_explain(error, origin, overridden)) from error

    @property
    def uses_priors(self) -> bool:
        """Whether priors are estimated; never for zero-shot CLIP and for training on true labels."""
        has_priors = self.priors.logit_bias or self.priors.label_shift or self.priors.prototypes
        return has_priors and self.method != "zeroshot" and self.options.get("labels") != "truth"

    @property
    def is_private(self) -> bool:
        """Whether the numbers of a single site are hidden by secure aggregation or noise."""
        return self.privacy.secure_aggregation or self.privacy.noise_multiplier > 0

    def to_toml(self) -> str:
        """Return the complete settings as TOML, which `load` reads back."""
        return tomli_w.dumps(self.model_dump())


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a TOML file, without validation."""
    try:
        return parse_toml(read_limited(path, MAX_SETTINGS).decode("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such settings file; fedcopl new STUDY writes one") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error


def load(path: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Load settings from a file; `key=value` pairs override them.

    >>> from tempfile import TemporaryDirectory
    >>> from fedcopl import load_config
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "settings.toml"
    ...     _ = file.write_text("rounds = 5")
    ...     config = load_config(file, ["clients=3", "train.lr=0.05"])
    >>> config.rounds, config.data.clients, config.train.lr
    (5, 3, 0.05)
    """
    return with_overrides(read_settings(path), overrides, str(path))


def with_overrides(settings: Mapping[str, Any], pairs: Iterable[str], origin: str) -> RunConfig:
    """Override the settings of a file by `key=value` pairs of the command line; errors name each setting's source."""
    listed = list(pairs)
    names = (_section_and_key(pair.partition("=")[0].strip()) for pair in listed)
    return RunConfig.from_mapping(override(settings, listed), origin, {".".join(name) for name in names if name})


def override(settings: Mapping[str, Any], pairs: Iterable[str]) -> dict[str, Any]:
    """Return settings with `section.key=value` overrides; `key` is enough if only one section has it."""
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    errors = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        name = _section_and_key(key.strip()) if equals else None
        if name is None:
            errors.append(f"{key.strip()}: {_unknown_setting(key.strip())}" if equals else f"{pair!r} is not key=value")
            continue
        *section, leaf = name
        target = merged.setdefault(section[0], {}) if section else merged
        if not isinstance(target, dict):
            errors.append(f"{section[0]}: should be a section")
            continue
        target[leaf] = _parse_value(text.strip())
    if errors:
        raise ConfigError("; ".join(errors))
    return merged


class NoOptions(Section):
    """The options of a method or labeler that has none."""


def read_options(
    config: RunConfig, options: type[_Options], owner: Literal["method", "labeler"] = "method"
) -> _Options:
    """Validate the options of the method or of the labeler."""
    section = "options" if owner == "method" else "labeler_options"
    try:
        return options.model_validate(getattr(config, section))
    except ValidationError as error:
        unknown = f"{getattr(config, owner)} has no such option (it has: {', '.join(options.model_fields) or 'none'})"
        errors = ({**entry, "loc": (section, *entry["loc"])} for entry in error.errors())
        reasons = describe_errors(errors, lambda name: unknown)
        raise ConfigError("; ".join(f"{name}: {reason}" for name, reason in reasons.items())) from error


def by_full_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by full name, such as `data.clients`.

    >>> by_full_name({"rounds": 3, "data": {"clients": 2}})
    {'rounds': 3, 'data.clients': 2}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= {f"{key}.{leaf}": v for leaf, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


_OPTION_SECTIONS = ("options", "labeler_options")  # validated by the method and the labeler


def setting_names() -> Iterator[tuple[str, ...]]:
    """Yield every setting by section and key: ("rounds",), ("data", "clients"), ..."""
    for name, field in RunConfig.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from ((name, leaf) for leaf in field.annotation.model_fields)
        elif name not in _OPTION_SECTIONS:
            yield (name,)


def _section_and_key(key: str) -> tuple[str, ...] | None:
    """Return section and key of a setting; option names are validated by the method or labeler."""
    section, dot, option = key.partition(".")
    return (section, option) if section in _OPTION_SECTIONS and dot and option else _spellings().get(key)


def _spellings() -> dict[str, tuple[str, ...]]:
    """Return section and key by every spelling that names exactly one setting."""
    names, leaves = list(setting_names()), [name[-1] for name in setting_names()]
    return {name[-1]: name for name in names if leaves.count(name[-1]) == 1} | {".".join(name): name for name in names}


def _parse_value(text: str) -> Any:
    """Parse a value as TOML, or if it is not TOML as text: `lr=0.1` is a number, `source=digits` needs no quotes."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _explain(error: ValidationError, origin: str, overridden: Collection[str]) -> str:
    """Return all errors in one line, those of overridden settings, which are from the command line, first."""
    reasons = describe_errors((dict(entry) for entry in error.errors()), _unknown_setting)
    sources: dict[str, list[str]] = {"command line": [], origin: []}
    for name, reason in reasons.items():
        sources["command line" if name in overridden else origin].append(f"{name}: {reason}")
    return "; ".join(f"{source}: {'; '.join(lines)}" for source, lines in sources.items() if lines)


def _unknown_setting(key: str) -> str:
    """Return the error message of an unknown setting, with the most similar one."""
    spellings = _spellings()
    tried = (difflib.get_close_matches(word, spellings, n=1) for word in (key, key.split(".")[-1]))
    close_matches = next((matches for matches in tried if matches), [])
    return "unknown setting" + (f"; did you mean {'.'.join(spellings[close_matches[0]])}?" if close_matches else "")


AS_PUBLISHED: Mapping[str, str | float | bool] = {
    "train.init": "random",
    "train.batch": 64,
    "train.lr": 0.1,
    "train.step": "plain",
    "train.weight_decay": 0.05,
    "train.decay_to": "zero",
    "train.clip_norm": 0.0,
    "train.holdout": 0.0,
    "train.patience": 0,
    "sharing.bounded": False,
    "priors.logit_bias": False,
    "priors.label_shift": False,
    "priors.prototypes": False,
}
"""The published values of all settings whose default differs: initialisation, SGD steps, holdout, bounds, priors.

A test compares them with docs/as-published.md, which cites the paper and the authors' code for every setting.
"""


def is_as_published(config: RunConfig) -> bool:
    """Return whether all settings of `AS_PUBLISHED` have their published values."""
    settings = by_full_name(config.model_dump())
    return all(settings[name] == value for name, value in AS_PUBLISHED.items())


def as_published() -> dict[str, Any]:
    """Return the published settings that differ from the defaults, by section."""
    return override({}, [f"{name}={json.dumps(value)}" for name, value in AS_PUBLISHED.items()])
