"""A real site: its images, its model, and its replies to the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ...clip.frozen_clip import Clip
from ...config import Model, RunConfig
from ...data.cache import PixelCache, Prepared
from ...data.catalog import load_dataset
from ...data.decoding import DecodeOptions
from ...data.label_files import corrections_of
from ...errors import ConfigError, DataError
from ...federation.client import Client
from ...federation.client_state import ClientState
from ...federation.learner import NO_TEST_SET, TestSet
from ...federation.server import ServerState
from ...messages import Estimate, Evaluate, Evaluated, Reply, Request
from ...run.build import backbone_name, build_clip, build_images, build_model, expert_labels
from ...run.folder import RESULTS, SETTINGS, RunFolder, file_name
from ...run.loop import complete_outcome
from ...run.previous_run import adapt_previous_run, initial_states, previous_run_name, read_previous_run
from ...run.progress_reporter import ProgressReporter
from ...run.pseudo_labels import write_image_list, write_labels
from ...run.record import ClientRecord, Outcome, RoundRecord, to_plain
from ..keys import site_secret
from ..message_format import one_line
from ..terms import LOCAL, Terms, classes_digest, config_from, images_digest
from .peers import check_peers
from .pipeline import SiteRequest, respond
from .policies import Approval, Consent, Limits, approve_all
from .site_state import SiteLedger

_DECODE_SETTINGS = ("window", "bands", "pages")  # of LOCAL["data"]: how image files are decoded


@dataclass(frozen=True)
class SiteOptions:
    """The options of `fedcopl join`."""

    name: str
    images: Path  # a folder of images, or a table that lists them
    classes_file: str = ""
    folder: Path = Path("site")  # of its keys and states
    model: Mapping[str, Any] = field(default_factory=dict)  # `model` settings of the site
    corrections: str = ""  # file of an expert's labels from `fedcopl review`, to train on
    consent: Consent = field(default_factory=Consent)
    data: Mapping[str, Any] = field(default_factory=dict)  # `data` settings of the site: how image files are decoded
    limits: Limits = field(default_factory=Limits)  # on the cost of a run
    peers: Path | None = None  # folder of public keys of its peers in secure aggregation

    def settings(self) -> RunConfig:
        """Return a config of the site's own `model` and `data` settings; all others have their defaults."""
        for section, given, own in (("model", self.model, LOCAL["model"]), ("data", self.data, _DECODE_SETTINGS)):
            foreign = sorted(set(given) - set(own))
            if foreign:
                raise ConfigError(f"{section}.{foreign[0]}: is set by the server; a site sets {', '.join(own)}")
        if not self.images.exists():
            raise DataError(f"{self.images}: there is no such folder or table; --images names the images of this site")
        kind = "manifest" if self.images.is_file() else "folder"
        data = {"source": kind, "path": str(self.images), "classes_file": self.classes_file, **self.data}
        return RunConfig.from_mapping({"model": dict(self.model), "data": data}, "settings")


class RunningSite:
    """A site whose images and model are loaded and checked. Its state between two requests is on disk."""

    def __init__(
        self, options: SiteOptions, progress: ProgressReporter | None = None, approval: Approval = approve_all
    ):
        self.options, self._settings = options, options.settings()
        self.approval, self.ledger = approval, SiteLedger(options.folder)
        progress = progress or ProgressReporter()
        self.notify = progress.note
        check_peers(options.peers)
        self.prepared, self.clip, self.images = _load(self._settings, progress)
        train = self.prepared.dataset.train
        self.corrections = corrections_of(
            np.arange(len(train)), expert_labels(options.corrections, self.prepared.dataset)
        )
        self.classes = classes_digest(self.prepared.dataset.classes)
        self.model = backbone_name(self._settings.model.backbone, self.clip)
        self.finished: Path | None = None  # folder of the run, after its last request
        self._secret = site_secret(options.folder)
        self._client_of = lru_cache(maxsize=1)(self._make_client)  # the settings change only with the run

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def folder_name(self) -> str:
        return sha256(b"folder" + self._secret).hexdigest()[:16]

    @property
    def has_test_set(self) -> bool:
        """Whether there are labelled test images; the consent decides whether accuracy is reported."""
        return self.prepared.dataset.test.labels is not None and len(self.prepared.dataset.test) > 0

    def handle(self, request: Request, terms: Terms) -> Reply:
        """Return the reply to a request, computed once; `Refused` if a policy of `pipeline` objects."""
        self.finished = None
        return respond(SiteRequest(self, request, terms))

    def state_from_previous_run(self, client: Client) -> ClientState:
        """Return the state from the previous run of this run; a new state if the site was not in the previous run."""
        name, start = previous_run_name(client.config), client.learner.initial()
        folder, classes = self.options.folder / "runs" / file_name(name), self.prepared.dataset.classes
        if not (folder / RESULTS).exists():
            self.notify(f"this site was not in the run {one_line(name)} and starts with new prompts")
            return ClientState()
        adapted = adapt_previous_run(read_previous_run(folder), client.config, self.clip, classes, start)
        return next(iter(initial_states(adapted, start).values()), ClientState())

    def write_results(
        self, folder: Path, config: RunConfig, request: Request, reply: Reply, state: ClientState
    ) -> None:
        """Write labels, or prompts and accuracy, after this reply; into a new folder also settings and image names."""
        if isinstance(request, Estimate) and state.log_probs is not None:
            agreement = state.prior.prototype_agreement(state.log_probs)
            write_labels(folder, request.round, {self.name: state.log_probs}, {self.name: agreement})
        if isinstance(request, Evaluate) and isinstance(reply, Evaluated) and request.shared is not None:
            classes = len(self.prepared.dataset.classes)
            server = ServerState(request.round, request.shared, classes, prior_model=state.prior.model)
            RunFolder(folder).write_prompts(server, {self.name: state})
            RunFolder(folder).write_json(RESULTS, to_plain(self._outcome(config, request.round, reply)))
            self.finished = folder if request.round + 1 == config.rounds else None
        elif not (folder / SETTINGS).exists():
            train = self.prepared.dataset.train
            write_image_list(folder, self.prepared.dataset.classes, train, {self.name: np.arange(len(train))})
            RunFolder(folder).begin(config)

    def _outcome(self, config: RunConfig, round: int, score: Evaluated) -> Outcome:
        """Return the results of the run at this site, with the accuracy of its last round."""
        dataset = self.prepared.dataset
        final = score.correct / score.examples if score.examples else None
        outcome = Outcome(rounds=(RoundRecord(round=round, macro=final, clients=(final,)),))
        clients = (ClientRecord(name=self.name, train=len(dataset.train), test=score.examples, final=final),)
        template, classes = config.model.template or dataset.template, dataset.classes
        return complete_outcome(
            outcome, config, backbone=self.model, classes=classes, template=template, clients=clients
        )

    def client(self, terms: Terms) -> Client:
        """Return the client of a run, cached until the settings change."""
        return self._client_of(terms.run, terms.number, tuple(sorted(terms.settings.items())))

    def _make_client(self, run: str, number: int, settings: tuple[tuple[str, Any], ...]) -> Client:
        config, own = config_from(dict(settings), f"run {run}"), self._settings
        model = config.model.model_copy(update={name: getattr(own.model, name) for name in LOCAL["model"]})
        data = config.data.model_copy(update={name: getattr(own.data, name) for name in _DECODE_SETTINGS})
        config = config.model_copy(update={"model": model, "data": data})
        dataset, labels = self.prepared.dataset, self.prepared.dataset.test.labels
        built = build_model(config, self.clip, dataset.classes, config.model.template or dataset.template)
        test_set: TestSet = NO_TEST_SET
        if labels is not None and self.has_test_set and self.options.consent.reports_accuracy:
            test_set = built.test_set(built.images(self.prepared.test), labels)
        # The seed of the noise depends on the run: another run with the same requests must not get the same noise.
        secret = sha256(self._secret + run.encode()).digest()
        learner = built.learner(built.images(self.prepared.train), number)
        min_images = self.options.consent.min_images
        return Client(learner, built.config, test_set, secret, self.corrections, min_images=min_images)


def _load(settings: RunConfig, progress: ProgressReporter) -> tuple[Prepared, Clip, str]:
    """Return the preprocessed images, the model, and the number and a digest of the training images."""
    progress.preparing("listing the images")
    dataset = load_dataset(settings.data)
    progress.preparing("loading the model")
    clip = build_clip(settings.model)
    # A class name that is too long for any prompt is reported before the images are preprocessed.
    without_prompts = RunConfig(model=settings.model.model_copy(update={"text_prompts": 0}))
    built = build_model(without_prompts, clip, dataset.classes, dataset.template)
    try:
        built.model.encoder.refuse_long_names(Model().text_prompts)
    except ConfigError as error:  # not raised: the server sets the length of prompts
        progress.note(f"{error}. A run with the default of this setting will be refused")
    prepared = build_images(dataset, clip.preprocess, progress)
    # A cache hit: `build_images` has just preprocessed these images.
    cached = PixelCache().pixels(dataset.train, clip.preprocess.resize_and_crop, clip.preprocess.key)
    # The digest includes the decode options: with others, the same files give other pixels.
    decoding = DecodeOptions.of(settings.data).key
    contents = [digest + decoding for number, digest in enumerate(cached.digests) if number not in cached.bad]
    return prepared, clip, images_digest(prepared.dataset.train.names, contents)
