"""One real site: its own images and model, and the answers to the server's questions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ...clip.frozen_clip import Clip
from ...config import Data, Model, RunConfig
from ...data.cache import PixelCache
from ...data.catalog import load_dataset
from ...data.corrections import corrections_of
from ...data.prepare import Prepared
from ...errors import ConfigError
from ...federation.client import NO_EXAM, Client, ClientState
from ...federation.server import ServerState
from ...messages import Ask, Estimate, Evaluate, Evaluated, Reply
from ...methods import choose_method
from ...run.believed_labels import write_images, write_labels
from ...run.build import backbone_name, build_clip, build_images, build_model, expert_answers
from ...run.folder import RESULTS, SETTINGS, RunFolder, file_name
from ...run.loop import versions
from ...run.record import ClientRecord, Outcome, RoundRecord, to_plain
from ...run.watcher import SilentWatcher, Watcher
from ..certificates import site_secret
from ..wire.terms import LOCAL, Refused, Terms, classes_digest, differences, hold_to, images_digest
from .consent import Consent
from .site_state import SiteState


@dataclass(frozen=True)
class SiteHome:
    """What a site says about itself when it joins."""

    name: str
    images: Path  # a folder of images, or a table that lists them
    classes_file: str = ""
    folder: Path = Path("site")  # where its keys and its states are kept
    model: Mapping[str, Any] = field(default_factory=dict)  # `model` settings that are its own business
    corrections: str = ""  # what its expert said in `fedcopl review`, to be trained on
    consent: Consent = field(default_factory=Consent)  # on what conditions it answers

    def data(self) -> Data:
        kind = "manifest" if self.images.is_file() else "folder"
        return Data(source=kind, path=str(self.images), classes_file=self.classes_file)

    def own_model(self) -> Model:
        foreign = sorted(set(self.model) - set(LOCAL["model"]))
        if foreign:
            raise ConfigError(f"model.{foreign[0]}: is the server's to say; a site sets {', '.join(LOCAL['model'])}")
        return RunConfig.from_mapping({"model": dict(self.model)}, "settings").model


class RunningSite:
    """Images and model loaded and checked. What it keeps between two questions is on disk."""

    def __init__(self, home: SiteHome, watcher: Watcher | None = None):
        self.home, self.own = home, home.own_model()
        self.prepared, self.clip, self.images = _load(home, self.own, watcher or SilentWatcher())
        train = self.prepared.dataset.train
        self.corrections = corrections_of(
            np.arange(len(train)), expert_answers(home.corrections, self.prepared.dataset)
        )
        self.classes = classes_digest(self.prepared.dataset.classes)
        self.model = backbone_name(self.own.backbone, self.clip)
        self._secret = site_secret(home.folder)
        self._client_of = lru_cache(maxsize=1)(self._make_client)  # settings change with the run, and then for good

    @property
    def name(self) -> str:
        return self.home.name

    @property
    def folder_name(self) -> str:
        return sha256(b"folder" + self._secret).hexdigest()[:16]

    @property
    def has_exam(self) -> bool:
        """Whether there are labelled test images; what becomes of them is for its conditions to say."""
        return self.prepared.dataset.test.labels is not None and len(self.prepared.dataset.test) > 0

    def answer(self, ask: Ask, terms: Terms) -> Reply:
        """The reply, worked out once however often it is asked; `Refused` if server and site do not fit together."""
        unlike = differences(terms, self.classes, self.model)
        if unlike:
            raise Refused("; ".join(unlike))
        objections = list(self.home.consent.objections(ask, terms.config()))
        if objections:
            raise Refused("; ".join(objections))
        client, folder = self._client(terms), self.home.folder / "runs" / file_name(terms.run)
        hold_to(folder / "terms.json", terms, self.images)
        states = SiteState(folder / "state")
        reply = states.answer(ask, terms.attempt, client)
        self._write_down(folder, client.config, ask, reply, states.state())
        return reply

    def _write_down(self, folder: Path, config: RunConfig, ask: Ask, reply: Reply, state: ClientState) -> None:
        """What the people at this site want of a run: its labels so far, and its own model, as in any run's folder."""
        if isinstance(ask, Estimate) and state.log_probs is not None:
            write_labels(folder, ask.round, {self.name: state.log_probs})
        if isinstance(ask, Evaluate) and isinstance(reply, Evaluated) and ask.shared is not None:
            classes, learned = len(self.prepared.dataset.classes), state.prior.learned
            server = ServerState(ask.round, ask.shared, classes, learned=learned)
            RunFolder(folder).write_prompts(server, {self.name: state})
            RunFolder(folder).write_json(RESULTS, to_plain(self._outcome(config, ask.round, reply)))
        elif not (folder / SETTINGS).exists():
            train = self.prepared.dataset.train
            write_images(folder, self.prepared.dataset.classes, train, {self.name: np.arange(len(train))})
            RunFolder(folder).begin(config)

    def _outcome(self, config: RunConfig, round: int, score: Evaluated) -> Outcome:
        """What this site knows of the run: its own part."""
        dataset = self.prepared.dataset
        final = score.correct / score.examples if score.examples else None
        own = ClientRecord(name=self.name, train=len(dataset.train), test=score.examples, final=final)
        method = choose_method(config)
        return Outcome(
            name=config.name,
            seed=config.seed,
            method=method.title,
            trains=method.trains,
            averaged=method.averaged(),
            rounds=(RoundRecord(round=round, macro=final, clients=(final,)),),
            classes=dataset.classes,
            template=config.model.template or dataset.template,
            clients=(own,),
            settings=config.model_dump(),
            versions=versions(),
        )

    def _client(self, terms: Terms) -> Client:
        return self._client_of(terms.run, terms.number, tuple(sorted(terms.settings.items())))

    def _make_client(self, run: str, number: int, settings: tuple[tuple[str, Any], ...]) -> Client:
        config = self._config(Terms("", 0, number, "", "", "", dict(settings)))
        dataset, labels = self.prepared.dataset, self.prepared.dataset.test.labels
        built = build_model(config, self.clip, dataset.classes, config.model.template or dataset.template)
        tells = labels is not None and self.has_exam and self.home.consent.tells_accuracy
        exam = built.exam(built.images(self.prepared.test), labels) if tells and labels is not None else NO_EXAM
        # Bound to the run: another run with the same questions must not get the same noise.
        secret = sha256(self._secret + run.encode()).digest()
        return built.client(built.learner(built.images(self.prepared.train), number), exam, secret, self.corrections)

    def _config(self, terms: Terms) -> RunConfig:
        """The server's settings, with this site's own in their stead."""
        config = terms.config()
        own = {name: getattr(self.own, name) for name in LOCAL["model"]}
        return config.model_copy(update={"model": config.model.model_copy(update=own)})


def _load(home: SiteHome, own: Model, watcher: Watcher) -> tuple[Prepared, Clip, str]:
    """Images and model, and a digest of the images to train on."""
    watcher.preparing("listing the images")
    dataset = load_dataset(home.data())
    watcher.preparing("loading the model")
    clip = build_clip(own)
    prepared = build_images(dataset, clip.preprocess, watcher)
    # They were cut a moment ago: this only looks them up.
    cut_before = PixelCache().pixels(dataset.train, clip.preprocess.cut, clip.preprocess.key)
    bad = {one.number for one in cut_before.bad}
    contents = [content for number, content in enumerate(cut_before.digests) if number not in bad]
    return prepared, clip, images_digest(prepared.dataset.train.names, contents)
