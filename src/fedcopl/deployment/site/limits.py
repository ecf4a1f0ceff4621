"""A site's own limits on what a run may cost it. The settings of a run are the server's; these are not."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from ...config import RunConfig
from ...errors import ConfigError


@dataclass(frozen=True)
class Limits:
    """The most that a site puts up with; `docs/federation.md` has the same list."""

    rounds: float = 1000  # of a run
    epochs: float = 100  # of training in a round
    batch: float = 512  # images in one step of training
    prompts: float = 64  # vectors of a visual prompt, or of a text prompt: memory grows with them
    template: float = 300  # letters of the sentence for class names
    runs: float = 20  # begun within a day
    restarts: float = 3  # times that a round may be played again with other questions
    seconds: float = 3600  # for one answer
    disk: float = 10  # GB of all runs at this site: beyond, no new one begins
    epsilon: float = math.inf  # given away in all runs together; then every answer has to have noise on it

    def __post_init__(self) -> None:
        wrong = [part.name for part in fields(self) if not getattr(self, part.name) >= 0]  # nan would always hold
        if wrong:
            raise ConfigError(f"--limit {wrong[0]}: must be a number from 0 on")

    @classmethod
    def from_pairs(cls, pairs: Iterable[str]) -> "Limits":
        """From `name=number`, as in `--limit epochs=200`."""
        known, given = [part.name for part in fields(cls)], {}
        for pair in pairs:
            name, _, number = pair.partition("=")
            if name.strip() not in known:
                raise ConfigError(f"--limit {pair}: there is no such limit (there are: {', '.join(known)})")
            try:
                given[name.strip()] = float(number)
            except ValueError as error:
                raise ConfigError(f"--limit {pair}: write it as {name.strip()}=NUMBER") from error
        return cls(**given)

    def objections(self, config: RunConfig) -> Iterator[str]:
        """Why a run with these settings is too much; it would be so for every question."""
        model = config.model
        for name, setting, asked in (
            ("rounds", "rounds", config.rounds),
            ("epochs", "train.epochs", config.train.epochs),
            ("batch", "train.batch", config.train.batch),
            ("prompts", "model.visual_prompts", model.visual_prompts),
            ("prompts", "model.text_prompts", model.text_prompts),
            ("template", "model.template", len(model.template)),
        ):
            if asked > getattr(self, name):
                letters = " letters" * (name == "template")
                yield f"{setting} is {asked:,}{letters}, and this site's limit is {getattr(self, name):,g}"
        if math.isfinite(self.epsilon) and not config.privacy.noise_multiplier:
            yield "this site has an epsilon budget: it answers only with privacy.noise_multiplier, and the run has none"
