"""A real site with images in class folders: replies and files do not depend on the names of the folders."""

from dataclasses import replace

import pytest

from fakes import run
from fedcopl.config import RunConfig
from fedcopl.data.catalog import load_dataset
from fedcopl.deployment.server.rounds import PreparedServer
from fedcopl.deployment.site import running_site
from fedcopl.deployment.site.policies import Consent
from fedcopl.deployment.site.running_site import RunningSite, SiteOptions
from fedcopl.deployment.site.site_state import SiteState
from fedcopl.deployment.terms import terms_of
from fedcopl.federation.client_state import state_tensors
from fedcopl.messages import Evaluated, digest
from fedcopl.simulation.simulate import LocalTransport
from small_digits import small_digits

CONFIG = RunConfig.from_mapping(
    {
        "rounds": 2,
        "labels": {"refresh_every": 1},
        "train": {"epochs": 1},
        "model": {"threads": 1},
        "priors": {"prototypes": False},
    },
    "test",
)
RELABEL = {"true": lambda labels: labels, "wrong": lambda labels: (labels * 7 + 3) % 10, "none": lambda _: None}


@pytest.fixture(scope="module")
def by_class(tmp_path_factory):
    """Digits in class folders: train/<class>/* and test/<class>/*."""
    root, digits = tmp_path_factory.mktemp("by-class"), small_digits(30, 12)
    (root / "classes.txt").write_text("\n".join(digits.classes) + "\n")
    for split, images in (("train", digits.train), ("test", digits.test)):
        for number, (image, label) in enumerate(zip(images.images, images.labels, strict=True)):
            folder = root / split / digits.classes[label]
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{number:03}.png")
    return root


class RecordingTransport(LocalTransport):
    """Sends requests to one real site; records its replies without its accuracy, and its state after each reply."""

    def __init__(self, site, terms):
        super().__init__({site.name: None})
        self._site, self._terms, self.replies, self.test_sets = site, terms, [], []

    def request(self, requests):
        reply = self._site.handle(requests[self._site.name], self._terms)
        measured = isinstance(reply, Evaluated)
        kept = SiteState(self._site.options.folder / "runs" / self._terms.run / "state").state()
        arrays = {name: value.tobytes() for name, value in state_tensors(kept).items()}
        self.replies.append((None if measured else digest(reply), arrays))
        self.test_sets += [reply] if measured else []
        return {self._site.name: reply}


def run_with_labels(by_class, home, truth, monkeypatch):
    """Return the final prompts, replies and states of a run with relabelled images, and the test accuracies."""

    def relabelled(data):
        # Renamed folders would change the order of the images, and so the run: only the labels are changed.
        dataset = load_dataset(data)
        splits = {
            name: replace(images, labels=RELABEL[truth](images.labels))
            for name, images in (("train", dataset.train), ("test", dataset.test))
        }
        return replace(dataset, **splits)

    monkeypatch.setattr(running_site, "load_dataset", relabelled)
    site = RunningSite(SiteOptions("north", by_class, "", home, {"threads": 1}, consent=Consent(min_images=0)))
    classes = site.prepared.dataset.classes
    server = PreparedServer(None, CONFIG, classes, site.clip).first_state()
    transport = RecordingTransport(site, terms_of("run", 1, CONFIG, classes, site.model))
    last = run(CONFIG, transport, server, lambda *_: None)
    return ({name: value.tobytes() for name, value in last.shared.items()}, transport.replies), transport.test_sets


def test_class_folders_of_a_site_do_not_change_the_run(by_class, tmp_path, monkeypatch):
    made, test_sets = zip(
        *(run_with_labels(by_class, tmp_path / truth, truth, monkeypatch) for truth in RELABEL), strict=True
    )
    assert made[0] == made[1] == made[2]
    assert test_sets[0] != test_sets[1] and {test_set.examples for test_set in test_sets[2]} == {
        0
    }  # the labels did differ
