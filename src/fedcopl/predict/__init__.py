"""A trained classifier in use: loaded, asked, exported."""

from .answers import Answer
from .classifier import Classifier
from .loading import load

__all__ = ["Answer", "Classifier", "load"]
