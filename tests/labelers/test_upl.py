"""UPL: the most confident images of each class, labelled once."""

import numpy as np

from fedcopl.config import RunConfig
from fedcopl.labelers import choose_labeler
from fedcopl.messages import Select
from fedcopl.simulation.simulate import simulate
from few_sites import config_of, three_site_digits

LOG_PROBS = np.log([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.3, 0.7]])


def test_the_most_confident_of_the_images_predicted_as_each_class():
    labeler = choose_labeler(RunConfig.from_mapping({"labeler": "upl", "labels": {"per_class": 2}}, "test"))
    quota = labeler.quota(labeler.count(LOG_PROBS), 4, Select(0, 0, None, 1))
    chosen = labeler.select(LOG_PROBS, quota)
    assert quota.tolist() == [2, 2]
    assert (chosen.index.tolist(), chosen.label.tolist()) == ([0, 2, 3], [0, 0, 1])  # class 1 has one image
    assert chosen.candidates is None


def test_labels_are_made_once(tmp_path):
    """With a refresh in every round the labels of FPL change with the model, those of UPL do not."""
    common = ("rounds=2", "refresh_every=1", "method=local", "per_class=3", "epochs=3")
    labels = {}
    for labeler in ("upl", "fpl"):
        outcome = simulate(config_of(*common, f"labeler={labeler}"), tmp_path / labeler, dataset=three_site_digits())
        labels[labeler] = [refresh.selected for refresh in outcome.refreshes]
    assert labels["upl"][0] == labels["upl"][1]
    assert labels["upl"][0] == labels["fpl"][0]  # the first labels are FPL's
    assert labels["fpl"][0] != labels["fpl"][1]
