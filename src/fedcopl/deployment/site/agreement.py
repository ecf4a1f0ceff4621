"""Whether the people at a site agree to a run: they see its settings before the first question is answered."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...config import RunConfig, read_settings
from ...data.dataset import TEMPLATE
from ...errors import ConfigError
from ...files import make_private_folder, write_private
from ...labelers import choose_labeler
from ...methods import choose_method, run_title
from ...plurals import counted
from ...privacy.accountant import planned_releases
from ...run.folder import file_name
from ..wire.message_format import one_line
from ..wire.terms import flat_settings

ASKED = "asked"  # folder with the settings of runs that were not agreed to yet
NOT_AGREED = ("name", "earlier")  # what a run is called, and with which of its own prompts a site begins
AskPeople = Callable[[str, list[str]], bool | None]
"""Shows the name of a run and what it is like, and asks; None: nobody is there to be asked."""


class Agreement(Protocol):
    """Somebody who agrees to runs, or does not."""

    def objection(self, run: str, config: RunConfig) -> str | None:
        """Why nothing of this run is answered, in words for the server; None: agreed."""
        ...


class AcceptAll:
    """To every run within the site's conditions and limits."""

    def objection(self, run: str, config: RunConfig) -> str | None:
        return None


@dataclass(frozen=True)
class FileAgreement:
    """To runs with the settings of a file, and to no other; their names, and what they go on from, may differ."""

    file: Path

    def __post_init__(self) -> None:
        self._settings()  # a mistake is found when the site starts

    def objection(self, run: str, config: RunConfig) -> str | None:
        agreed, asked = self._settings(), _compared(config)
        names = sorted(name for name in {*agreed, *asked} if agreed.get(name) != asked.get(name))
        if not names:
            return None
        return f"this site has agreed to other settings: {', '.join(names[:5])}{' and more' * (len(names) > 5)}"

    def _settings(self) -> dict[str, object]:
        return _compared(RunConfig.from_mapping(read_settings(self.file), str(self.file)))


def _compared(config: RunConfig) -> dict[str, object]:
    flat: dict[str, object] = {**flat_settings(config), "model.template": config.model.template or TEMPLATE}
    return {name: value for name, value in flat.items() if name not in NOT_AGREED}


@dataclass
class InteractiveAgreement:
    """To what somebody at the terminal says yes to. Who is away is told in one line what to do."""

    folder: Path  # of the site
    request: AskPeople
    watch: Callable[[str], None]  # tells people
    _declined: str = ""

    def objection(self, run: str, config: RunConfig) -> str | None:
        if self._declined == run:
            return "the people at this site have declined this run"
        make_private_folder(self.folder / ASKED)
        file = self.folder / ASKED / f"{file_name(run)}.toml"
        write_private(file, config.to_toml().encode())
        said = self.request(one_line(run), list(run_in_words(config)))
        if said is None:
            self.watch(f"run {one_line(run)} waits for your agreement: read {file}, then join with --accept {file}")
            return "the people at this site have not agreed to this run yet; once they have, go on with --resume"
        file.unlink(missing_ok=True)
        if not said:
            self._declined = run
            return "the people at this site have declined this run"
        return None


def agreement_of(accept: str, folder: Path, request: AskPeople, watch: Callable[[str], None]) -> Agreement:
    """As `--accept` says: `ask`, `always`, or a file of settings."""
    if accept == "ask":
        return InteractiveAgreement(folder, request, watch)
    if accept == "always":
        return AcceptAll()
    if not Path(accept).is_file():
        raise ConfigError(
            f"--accept {accept}: there is no such file; say ask, always, or name the settings that you agree to"
        )
    return FileAgreement(Path(accept))


def run_in_words(config: RunConfig) -> Iterator[str]:
    """What a run with these settings is like, and what of the list of what leaves a site leaves in it."""
    method, privacy = choose_method(config), config.privacy
    hidden = (
        f"in secure aggregation of at least {counted(privacy.min_sites, 'site')}"
        if privacy.secure_aggregation
        else "openly"
    )
    noise = f", with noise of {privacy.noise_multiplier:g}" if privacy.noise_multiplier else ""
    yield f"{counted(config.rounds, 'round')} of {run_title(config)}, {counted(config.train.epochs, 'epoch')} each"
    yield f"prompts that leave after each round: {', '.join(method.averaged()) or 'none'}, {hidden}{noise}"
    refreshes = -(-config.rounds // config.labels.refresh_every)
    counts = f"at {counted(refreshes, 'refresh')}, {hidden}{noise}" if choose_labeler(config).cooperative else "none"
    yield f"counts of sure images by class that leave: {counts}"
    if config.adapts and config.priors.logit_bias:
        features = config.priors.prototypes and not privacy.noise_multiplier
        of = "posteriors, and image features by class" if features else "posteriors"
        yield f"sums over the images for the priors that leave: {of}, {hidden}{noise}"
    if privacy.noise_multiplier:
        yield f"answers with noise on them, in all: {planned_releases(config)} (`fedcopl privacy` tells the epsilon)"
    yield from (one_line(f"{name} = {value}") for name, value in flat_settings(config).items() if name != "name")
