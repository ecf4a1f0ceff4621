"""A trained classifier in use: loaded, asked, exported."""

from .loading import load
from .predict import Classifier
from .predictions import Answer

__all__ = ["Answer", "Classifier", "load"]
