"""Titles of runs depend on the settings alone."""

import pytest

from fedcopl.config import RunConfig, as_published, override
from fedcopl.methods import METHODS, choose_method, priors_note, run_title

OFF = ["priors.logit_bias=false", "priors.label_shift=false", "priors.prototypes=false"]
TITLES = {
    "FedCoPL + priors": [],
    "FedCoPL": OFF,
    "FedCoPL + FPL + priors": ["labeler=fpl"],
    "FedCoPL + priors (label shift)": ["priors.logit_bias=false", "priors.prototypes=false"],
    "PromptFL + FPL + priors": ["method=promptfl", "labeler=fpl"],
    "PromptFL + FPL": ["method=promptfl", "labeler=fpl", *OFF],
    "PromptFL + CoPL + priors": ["method=promptfl"],
    "FedOTP + CPL + priors": ["method=fedopt", "labeler=cpl"],
    "TransCLIP + priors": ["method=transclip"],
    "CLIP + priors": ["method=priors"],
    "CLIP": ["method=zeroshot"],
    "Central + true labels": ["method=central", "options.labels=truth"],
}
PUBLISHED = {
    "FedCoPL (as published)": [],
    "PromptFL + FPL (as published)": ["method=promptfl", "labeler=fpl"],
    "FedCoPL + priors (logit bias)": ["priors.logit_bias=true"],
    "FedCoPL": ["train.lr=0.2"],
    "TransCLIP": ["method=transclip"],  # nothing is trained, so nothing else is the paper's
}


def config_of(pairs, base=None):
    return RunConfig.from_mapping(override(base or {}, pairs), "test")


@pytest.mark.parametrize("title", TITLES)
def test_by_the_defaults(title):
    assert run_title(config_of(TITLES[title])) == title


@pytest.mark.parametrize("title", PUBLISHED)
def test_as_published(title):
    assert run_title(config_of(PUBLISHED[title], as_published())) == title


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_literature_with_priors_has_a_note_how_to_run_it_without(name):
    config = config_of([f"method={name}"])
    note = priors_note(config)
    assert (note is None) == (name in ("fedcopl", "priors", "zeroshot"))
    assert priors_note(config_of([f"method={name}"], as_published())) is None
    if note:
        assert f"this is {run_title(config)}; {choose_method(config).title} without priors: --as-published" in note
        without = config_of([f"method={name}", *note.rsplit("or ", 1)[1].split()])
        assert not without.uses_priors and "priors" not in run_title(without)
