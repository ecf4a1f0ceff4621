"""The words of the page are true for every method and labeler."""

from dataclasses import replace

import pytest

from fedcopl.config import RunConfig
from fedcopl.methods import METHODS, choose_method
from fedcopl.report.narrative import OLD_NAMES, averages, label_story, lead
from fedcopl.report.numbers import SPACE
from report.sample_results import outcome_of, sample_results


def run_of(shared=("visual",), averaged=None, **settings):
    results = sample_results(clients=2, classes=("cat", "dog"), rounds=1, settings=settings)
    return outcome_of(results | {"shared": shared and list(shared), "averaged": averaged})


def sentence(outcome):
    return lead(outcome).replace(SPACE, " ")


def test_fedcopl_as_the_paper_has_it():
    assert sentence(run_of()).endswith(
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
def test_what_was_averaged_in_folders_without_words_for_it(shared, words):
    assert averages(run_of(shared)) == words


def test_what_a_run_calls_it_is_what_it_is_called():
    assert (
        averages(run_of(["visual"], ["gates", "a bias for each class"]))
        == "averages their gates and a bias for each class"
    )
    assert averages(run_of(["visual"], [])) == "averages nothing"


def test_a_run_that_does_not_say_what_it_shared():
    assert averages(run_of(None, method="newone")) == "averages what newone shares"
    assert averages(replace(run_of(None), method="NewOne")) == "averages what NewOne shares"


def test_answers_through_priors_are_not_called_plain():
    results = sample_results(clients=2, classes=("cat", "dog"), rounds=1)
    plain = replace(outcome_of(results), trains=False)
    assert sentence(plain).startswith("Nothing was trained: these are plain CLIP's answers for 2 classes")
    assert "priors" not in label_story(plain).labelled
    results["refreshes"][0]["class_priors"] = [[0.5, 0.5], []]
    through = replace(outcome_of(results), trains=False)
    assert "these are plain CLIP's answers through priors that need no label for 2" in sentence(through)
    assert label_story(through).labelled.endswith("Both are read through the priors.")


AVERAGED = {name: choose_method(RunConfig(method=name)) for name in METHODS}
OF_VERSION_0_1 = [name for name, method in AVERAGED.items() if set(method.shared()) <= set(OLD_NAMES)]


@pytest.mark.parametrize("name", OF_VERSION_0_1)  # a new method's arrays are in no old folder
def test_old_folders_read_as_new_ones(name):
    method = AVERAGED[name]
    assert averages(run_of(method.shared())) == averages(run_of(method.shared(), list(method.averaged())))


def test_the_labelers():
    own_counts = sentence(run_of(labels={"global_allocation": False}))
    assert (
        "each client pseudo-labels its own images and trains on as many as it is sure of, the server av" in own_counts
    )
    assert "each client trains on its surest images of each class, the server averages" in sentence(
        run_of(labeler="fpl")
    )
    assert "with a set of candidate labels for each, the server averages" in sentence(run_of(labeler="cpl"))
    for labeler in ("fpl", "cpl"):
        assert "balances" not in sentence(run_of(labeler=labeler))


def test_what_is_no_federation_is_not_called_one():
    assert sentence(run_of([], method="zeroshot")).startswith("Nothing was trained: these are plain CLIP's answers")
    assert "One place with all" in sentence(run_of([], method="central"))
    assert "without using a single label" in sentence(run_of([], method="central"))


def test_true_labels_are_owned_up_to():
    outcome = run_of([], method="central", options={"labels": "truth"})
    assert "without using a single label" not in sentence(outcome)
    assert "supervised learning" in sentence(outcome)
    how = label_story(outcome)
    assert how.supervised
    assert not how.cooperative
    assert "true labels were used" in how.account


def test_sure_of_or_merely_counted():
    assert "sure of" in label_story(run_of()).estimated
    no_filter = {"confidence_filter": False, "entropy_filter": False}
    assert "sure of" not in label_story(run_of(labels=no_filter)).estimated
    assert "sure of" in label_story(run_of(labels={"confidence_filter": False})).estimated
    assert "sure of" not in label_story(run_of(labeler="fpl")).estimated


def test_only_where_the_server_shares_out_somebody_gave():
    assert label_story(run_of()).title == "Balance: who gave, who got"
    for settings in ({"labeler": "fpl"}, {"labeler": "cpl"}, {"labels": {"global_allocation": False}}):
        how = label_story(run_of(**settings))
        assert how.account
        assert "gave" not in how.title
        assert not how.cooperative
