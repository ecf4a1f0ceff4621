"""What a site's expert said: those images are always trained on, with the label that was told."""

from typing import NamedTuple

import numpy as np

from . import IntArray
from .select import Selection


class Corrections(NamedTuple):
    """Images of one client whose label an expert gave."""

    index: IntArray  # type: ignore[assignment]  # (t,) positions among this client's images, each once
    label: IntArray  # (t,)


NO_CORRECTIONS = Corrections(np.zeros(0, np.int64), np.zeros(0, np.int64))


def with_corrections(selection: Selection, told: Corrections) -> Selection:
    """The selection with the told images in it, first in their class, and with no other label.

    Quotas do not count them, and neither do the estimates: only what is trained on changes.
    """
    if not len(told.index):
        return selection
    kept = ~np.isin(selection.index, told.index)
    index = np.concatenate([told.index, selection.index[kept]])
    label = np.concatenate([told.label, selection.label[kept]])
    order = np.argsort(label, kind="stable")
    if selection.candidates is None:
        return Selection(index[order], label[order])
    certain = np.eye(selection.candidates.shape[1], dtype=selection.candidates.dtype)[told.label]
    return Selection(index[order], label[order], np.concatenate([certain, selection.candidates[kept]])[order])
