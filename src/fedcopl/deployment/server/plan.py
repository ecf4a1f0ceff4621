"""The plan of a server, checked and loaded before any site may join."""

from dataclasses import dataclass, replace
from pathlib import Path

from ...algorithm import FloatArray
from ...clip.frozen_clip import Clip
from ...config import RunConfig
from ...data.dataset import TEMPLATE, clean_all, read_classes, read_other_names
from ...errors import ConfigError
from ...federation.server import ServerState, refuse_privacy
from ...methods import choose_method, settled
from ...privacy.accountant import require_accounting
from ...run.build import build_clip, first_state, known_class_prior
from ...run.folder import RunFolder
from ...run.previous_run import (
    PreviousRun,
    adapt_previous_run,
    read_previous_run,
    require_previous_run,
    with_reference,
)
from .grid_transport import Timeouts


@dataclass(frozen=True)
class ServerPlan:
    """Settings, classes and folders of one run of a server."""

    config: RunConfig
    classes_file: Path | None  # None in a simulation, where the dataset has its classes
    out: Path
    timeouts: Timeouts
    resume: bool = False
    earlier: Path | None = None  # folder of a finished run to continue from

    def classes(self) -> tuple[str, ...]:
        if self.classes_file is None:
            raise ConfigError("classes: name the file with the class names, one per line; all sites need the same file")
        return clean_all(read_classes(self.classes_file), self.classes_file)

    def whole_config(self) -> RunConfig:
        """Return the settings with the prompt templates written out: sites must not choose their own."""
        others = "" if self.classes_file is None else read_other_names(self.classes_file)
        sentences = (self.config.model.template or TEMPLATE) + others
        model = self.config.model.model_copy(update={"template": sentences})
        return self.config.model_copy(update={"model": model})


@dataclass(frozen=True)
class PreparedServer:
    """A plan with its classes, model and earlier run loaded."""

    plan: ServerPlan
    config: RunConfig
    classes: tuple[str, ...]
    clip: Clip
    class_prior: FloatArray | None = None  # over all sites
    earlier: PreviousRun | None = None  # to continue from; not needed by a run that is resumed after its first round

    @classmethod
    def prepare(cls, plan: ServerPlan) -> "PreparedServer":
        """Load everything; errors that can be found before the run are raised here."""
        earlier = None if plan.earlier is None else read_previous_run(plan.earlier)
        classes, config = plan.classes(), with_reference(settled(plan.whole_config()), earlier)
        require_accounting(config)
        refuse_privacy(config, choose_method(config).neighbours())
        prior = known_class_prior(config, classes)
        with RunFolder(plan.out) as folder:
            if folder.open(config, resume=plan.resume) is None:
                require_previous_run(config, earlier)
        clip = build_clip(config.model)
        prepared = cls(plan, config, classes, clip, prior, earlier)
        prepared.first_state()  # also checks that an earlier run fits
        return prepared

    def first_state(self) -> ServerState:
        count = len(self.classes)
        start = choose_method(self.config).start(self.clip, count)
        state = replace(first_state(self.config, start, count, self.clip.feature_size), class_prior=self.class_prior)
        if self.earlier is None:
            return state
        fits = adapt_previous_run(self.earlier, self.config, self.clip, self.classes, start)
        return replace(state, shared=fits.shared)
