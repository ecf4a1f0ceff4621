"""What one site tells of the priors, worked out alone: what the program works out for many at once is held to it."""

import numpy as np

from fedcopl.algorithm.priors import View, explained_by_sites
from fedcopl.algorithm.prototypes import class_sums


def explained_by(view, readings):
    return explained_by_sites(View.of_sites([view]), readings)[0]


def shown_by(view, features, reading):
    own = np.exp(view.posteriors(reading, view.site_prior(reading).mix))
    return class_sums(features, own), own
