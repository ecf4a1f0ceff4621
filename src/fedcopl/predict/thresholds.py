"""Thresholds for a run's classifiers, from the unlabelled images that each was trained on."""

from dataclasses import replace

from ..data.dataset import Dataset
from ..run.build import images_of_clients
from ..run.watcher import SilentWatcher
from .classifier import Classifier
from .confidence import SHARE, Confidence
from .loading import FinishedRun


class OwnImages:
    """Every client's own images of a run; `dataset` stands in for the one its settings name."""

    def __init__(self, run: FinishedRun, dataset: Dataset | None = None):
        self.run = run
        transform = run.model.encoder.clip.preprocess
        self._pixels, self._places = images_of_clients(run.config, transform, SilentWatcher(), dataset)

    def classifier(self, client: str, share: float = SHARE) -> Classifier:
        """A client's classifier that knows how sure it is of its own images; one without images knows nothing."""
        plain, own = self.run.classifier(client), self._places[client]
        if not len(own):
            return plain
        confidence = Confidence.of(plain.predictor.log_probabilities(self._pixels, own))
        return Classifier(plain.predictor, replace(plain.recipe, confidence=confidence, share=share))
