"""The words of the page are true for every method and labeler."""

import pytest

from fedcopl.config import RunConfig
from fedcopl.methods import METHODS, choose_method
from fedcopl.report.narrative import AVERAGED, averages, labelling, lead
from fedcopl.report.numbers import SPACE
from report.sample_results import sample_results


def told(shared=("visual",), **settings):
    results = sample_results(clients=2, classes=("cat", "dog"), rounds=1, settings=settings)
    return results | {"shared": list(shared)}


def sentence(results):
    return lead(results).replace(SPACE, " ")


def test_fedcopl_as_the_paper_has_it():
    assert sentence(told()).endswith(
        "without using a single label: each client pseudo-labels its own images, the server balances how many of each "
        "class are trained on and averages their visual prompts, and no image leaves its client."
    )


@pytest.mark.parametrize(
    ("shared", "words"),
    [
        (["visual"], "averages their visual prompts"),
        (["visual", "text"], "averages their visual prompts and text prompts"),
        (["down", "down bias", "up", "up bias"], "averages their adapters"),
        (["global text"], "averages their global text prompts"),
        ([], "averages nothing"),
        (["something new"], "averages their something new"),
    ],
)
def test_what_is_averaged(shared, words):
    assert averages(told(shared)) == words


def test_a_run_that_does_not_say_what_it_shared():
    results = told(method="fedclip")
    del results["shared"]
    assert averages(results) == "averages what fedclip shares"


@pytest.mark.parametrize("name", METHODS)
def test_whatever_a_method_shares_has_a_name_for_people(name):
    assert set(choose_method(RunConfig(method=name)).shared()) <= set(AVERAGED)


def test_the_labelers():
    own_counts = sentence(told(labels={"global_allocation": False}))
    assert (
        "each client pseudo-labels its own images and trains on as many as it is sure of, the server av" in own_counts
    )
    assert "each client trains on its surest images of each class, the server averages" in sentence(told(labeler="fpl"))
    assert "with a set of candidate labels for each, the server averages" in sentence(told(labeler="cpl"))
    for labeler in ("fpl", "cpl"):
        assert "balances" not in sentence(told(labeler=labeler))


def test_what_is_no_federation_is_not_called_one():
    assert sentence(told([], method="zeroshot")).startswith("Nothing was trained: these are plain CLIP's answers")
    assert "One place with all" in sentence(told([], method="central"))
    assert "without using a single label" in sentence(told([], method="central"))


def test_true_labels_are_owned_up_to():
    results = told([], method="central", options={"labels": "truth"})
    assert "without using a single label" not in sentence(results)
    assert "supervised learning" in sentence(results)
    how = labelling(results)
    assert how.supervised
    assert not how.cooperative
    assert "true labels were used" in how.account


def test_sure_of_or_merely_counted():
    assert "sure of" in labelling(told()).estimated
    no_filter = {"confidence_filter": False, "entropy_filter": False}
    assert "sure of" not in labelling(told(labels=no_filter)).estimated
    assert "sure of" in labelling(told(labels={"confidence_filter": False})).estimated
    assert "sure of" not in labelling(told(labeler="fpl")).estimated


def test_only_where_the_server_shares_out_somebody_gave():
    assert labelling(told()).title == "Balance: who gave, who got"
    for settings in ({"labeler": "fpl"}, {"labeler": "cpl"}, {"labels": {"global_allocation": False}}):
        how = labelling(told(**settings))
        assert how.account
        assert "gave" not in how.title
        assert not how.cooperative
