"""Labels of a client's finished classifier: computed once and kept next to the pseudo labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..data.cache import PixelCache, Progress
from ..data.dataset import ImageSet
from ..errors import DataError
from ..run.folder import RESULTS
from ..run.pseudo_labels import PseudoLabels, read_final, write_final
from .images import LabelHistory, StoredGallery


def with_final_labels(
    gallery: StoredGallery, folder: Path, progress: Progress = lambda done, total: None
) -> StoredGallery:
    """The gallery with the finished classifier's labels as its last; an error of ours where there is no such thing."""
    results = folder / RESULTS
    if not results.is_file():
        raise DataError("the run is not over")
    state = results.stat()
    made_of = f"{state.st_mtime_ns} {state.st_size} {len(gallery.names)}"  # a run that went on has other results
    labels = read_final(folder, gallery.client, made_of)
    if labels is None:
        log_probs = _answers(gallery, folder, progress)
        write_final(folder, gallery.client, made_of, gallery.predictions.rounds[-1] + 1, log_probs)
        labels = read_final(folder, gallery.client, made_of)
    return gallery if labels is None else replace(gallery, predictions=_ending_in(gallery.predictions, labels))


def _answers(gallery: StoredGallery, folder: Path, progress: Progress) -> NDArray[np.float64]:
    """log p (n, C) of all images."""
    from ..classifier.loading import load  # brings torch, only where nobody has done this before

    predictor = load(folder, client=gallery.client).predictor
    transform = predictor.transform
    cut = PixelCache().pixels(ImageSet(gallery.images, names=gallery.names), transform.cut, transform.key, progress)
    if cut.bad:
        raise DataError(f"{cut.bad[0].name}: {cut.bad[0].reason}")
    return predictor.log_probabilities(cut.array)


def _ending_in(predictions: LabelHistory, final: PseudoLabels) -> LabelHistory:
    return replace(
        predictions,
        rounds=(*predictions.rounds, final.round),
        labels=np.vstack([predictions.labels, final.classes[None, :, 0]]).astype(np.int64),
        log_probability=np.vstack([predictions.log_probability, final.log_probability[None, :, 0]]).astype(np.float64),
        top=final.classes.astype(np.int64),
        top_log_probability=final.log_probability.astype(np.float64),
        is_final=True,
    )
