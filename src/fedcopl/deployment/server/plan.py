"""What a server is to do, and all of it looked at and loaded before anybody is let in."""

from dataclasses import dataclass
from pathlib import Path

from ...clip.frozen_clip import Clip
from ...config import RunConfig
from ...data.dataset import clean_all, read_classes
from ...data.records import TEMPLATE
from ...errors import ConfigError
from ...federation.server import ServerState, refuse_privacy
from ...methods import choose_method, settled
from ...privacy.accountant import require_accounting
from ...run.build import build_clip, feature_width, first_state
from ...run.folder import RunFolder
from .grid_clients import Patience


@dataclass(frozen=True)
class ServerPlan:
    """All that a server needs to know before it begins."""

    config: RunConfig
    classes_file: Path | None  # None in a simulation, where the data set knows its classes
    out: Path
    patience: Patience
    resume: bool = False

    def classes(self) -> tuple[str, ...]:
        if self.classes_file is None:
            raise ConfigError("classes: name the file with the class names, one a line; the sites need the same one")
        return clean_all(read_classes(self.classes_file), self.classes_file)

    def whole_config(self) -> RunConfig:
        """The settings with the sentence written out: sites must not choose their own."""
        model = self.config.model.model_copy(update={"template": self.config.model.template or TEMPLATE})
        return self.config.model_copy(update={"model": model})


@dataclass(frozen=True)
class PreparedServer:
    """A plan with everything in it looked at and loaded."""

    plan: ServerPlan
    config: RunConfig
    classes: tuple[str, ...]
    clip: Clip

    @classmethod
    def prepare(cls, plan: ServerPlan) -> "PreparedServer":
        """Every mistake that can be found beforehand is found here."""
        classes, config = plan.classes(), settled(plan.whole_config())
        require_accounting(config)
        refuse_privacy(config, choose_method(config).neighbours())
        clip = build_clip(config.model)
        with RunFolder(plan.out) as folder:
            folder.open(config, resume=plan.resume)
        return cls(plan, config, classes, clip)

    def first_state(self) -> ServerState:
        count = len(self.classes)
        return first_state(
            self.config, choose_method(self.config).start(self.clip, count), count, feature_width(self.clip)
        )
