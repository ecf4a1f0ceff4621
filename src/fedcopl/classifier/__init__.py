"""A trained classifier: loading, prediction, export."""

from .loading import load
from .predict import Classifier, Prediction

__all__ = ["Classifier", "Prediction", "load"]
