"""The words of the page are true for every method and labeler."""

from dataclasses import replace

from fedcopl.report.formatting import SPACE
from fedcopl.report.narrative import _server_part, label_texts, run_summary
from report.sample_results import outcome_of, sample_results


def run_of(averaged=("visual prompts",), **settings):
    results = sample_results(clients=2, classes=("cat", "dog"), rounds=1, settings=settings)
    return outcome_of(results | {"averaged": averaged and list(averaged)})


def sentence(outcome):
    return run_summary(outcome).replace(SPACE, " ")


def test_fedcopl_as_the_paper_has_it():
    assert sentence(run_of()).endswith(
        "without labels: each client pseudo-labels its own images, the server balances the classes and averages their "
        "visual prompts, and no image leaves its client."
    )


def test_the_summary_names_the_averaged_arrays():
    assert _server_part(run_of(["gates", "a bias for each class"])) == "averages their gates and a bias for each class"
    assert _server_part(replace(run_of(), averaged=())) == "averages nothing"
    assert _server_part(run_of(None, method="newone")) == "averages the arrays that newone shares"
    assert _server_part(replace(run_of(None), method="NewOne")) == "averages the arrays that NewOne shares"


def test_predictions_with_priors_are_not_called_plain():
    results = sample_results(clients=2, classes=("cat", "dog"), rounds=1)
    plain = replace(outcome_of(results), trains=False)
    assert sentence(plain).startswith("Zero-shot CLIP predictions, without training: 2 clients")
    assert "priors" not in label_texts(plain).labelled
    results["refreshes"][0]["class_prior"] = [[0.5, 0.5], []]
    adjusted = replace(outcome_of(results), trains=False)
    assert sentence(adjusted).startswith("Zero-shot CLIP predictions, adjusted by label-free priors, without training")
    assert label_texts(adjusted).labelled.endswith("Both use the label-free priors.")


def test_the_labelers():
    own_counts = sentence(run_of(labels={"global_allocation": False}))
    assert "each client pseudo-labels its own images and trains on the confident ones, the server av" in own_counts
    assert "trains on its most confident images of each class, the server averages" in sentence(run_of(labeler="fpl"))
    assert "with a set of candidate labels for each, the server averages" in sentence(run_of(labeler="cpl"))
    for labeler in ("fpl", "cpl"):
        assert "balances" not in sentence(run_of(labeler=labeler))


def test_the_summary_of_a_pooled_run_is_not_that_of_a_federation():
    assert sentence(run_of([], method="zeroshot")).startswith("Zero-shot CLIP predictions, without training")
    assert sentence(run_of([], method="central")).startswith("Training without labels on all")
    assert "not a federation" in sentence(run_of([], method="central"))


def test_true_labels_are_named():
    outcome = run_of([], method="central", options={"labels": "truth"})
    assert sentence(outcome).startswith("Supervised training")
    how = label_texts(outcome)
    assert how.supervised
    assert not how.cooperative
    assert "true labels of all images were used" in how.rule


def test_confident_or_all_images_are_counted():
    assert "Confident" in label_texts(run_of()).estimated
    no_filter = {"confidence_filter": False, "entropy_filter": False}
    assert "Confident" not in label_texts(run_of(labels=no_filter)).estimated
    assert "Confident" in label_texts(run_of(labels={"confidence_filter": False})).estimated
    assert "Confident" not in label_texts(run_of(labeler="fpl")).estimated


def test_only_the_global_allocation_is_cooperative():
    assert label_texts(run_of()).cooperative
    for settings in ({"labeler": "fpl"}, {"labeler": "cpl"}, {"labels": {"global_allocation": False}}):
        assert not label_texts(run_of(**settings)).cooperative
