"""A trained classifier in use: loaded, asked, told when to keep silent, exported."""

from .classifier import Classifier
from .label_images import Answer
from .loading import load

__all__ = ["Answer", "Classifier", "load"]
