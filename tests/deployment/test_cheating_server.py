"""A malicious server against a real site with the built-in model: known attacks are refused."""

import json
import re
from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from deployment.toolbox import digit_sites
from fedcopl.config import RunConfig
from fedcopl.deployment.server.rounds import PreparedServer
from fedcopl.deployment.site.policies import (
    Consent,
    Limits,
    _approval_by_file,
    _ApprovalAtTerminal,
    _describe_run,
    choose_approval,
)
from fedcopl.deployment.site.running_site import RunningSite, SiteOptions
from fedcopl.deployment.site.site_state import SiteLedger, SiteState, release_of
from fedcopl.deployment.terms import Refused, terms_of
from fedcopl.errors import CannotReply, ConfigError, RunFolderError
from fedcopl.federation.client_state import ClientState
from fedcopl.federation.prior_estimation import prior_settings
from fedcopl.federation.validation import Expected, validate_request
from fedcopl.messages import Adapt, Estimate, Evaluate, Select, Train
from fedcopl.priors.estimation import Estimation
from fedcopl.privacy.accountant import epsilon_of

SETTINGS = {"rounds": 3, "labels": {"refresh_every": 5}, "train": {"epochs": 1}, "model": {"threads": 1}}
NO_PRIORS = {"priors": {"logit_bias": False, "label_shift": False, "prototypes": False}}
CONFIG = RunConfig.from_mapping(SETTINGS | NO_PRIORS, "test")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    digit_sites(root, 1, 30)
    images, classes = root / "clients/site-a", str(root / "classes.txt")
    return RunningSite(SiteOptions("site-a", images, classes, root / "home", {"threads": 1}))


@pytest.fixture
def site(loaded, tmp_path):
    """A site with a new folder, and the loaded model."""
    return at_home(loaded, tmp_path)


def at_home(loaded, folder, **changes):
    site = copy(loaded)
    site.options = replace(loaded.options, folder=folder, **changes)
    site.ledger = SiteLedger(folder)
    site._client_of = site._make_client  # no cache: the conditions differ
    return site


@pytest.fixture(scope="module")
def start(loaded):
    return PreparedServer(None, CONFIG, loaded.prepared.dataset.classes, loaded.clip).first_state().shared


def terms(site, config=CONFIG, run="run", attempt=1):
    return terms_of(run, attempt, config, site.prepared.dataset.classes, site.model)


def changed(**settings):
    return RunConfig.from_mapping(SETTINGS | NO_PRIORS | settings, "test")


def first_round(shared):
    return [Estimate(0, shared), Select(0, 0, np.full(10, 3), 2), Train(0, shared)]


def test_more_requests_than_the_run_has_are_refused_without_effect(site, start):
    for message in first_round(start):
        site.handle(message, terms(site))
    state = site.options.folder / "runs/run/state"
    before = {file.name: file.read_bytes() for file in state.iterdir()}
    moved = {"visual": start["visual"] + 0.1}
    attacks = [Train(98, start), *(Train(0, {"visual": start["visual"] + n}) for n in range(1, 6))]
    attacks += [Estimate(0, {"visual": start["visual"] * n}) for n in range(2, 62)]
    for attack in attacks:
        with pytest.raises(Refused, match=r"^unexpected request: (Train|Estimate) in round"):
            site.handle(attack, terms(site))
    with pytest.raises(Refused, match="with other prompts than at the start of the round"):  # also after a restart
        site.handle(Train(0, moved), terms(site, attempt=2))
    after = {file.name: file.read_bytes() for file in state.iterdir()}
    assert after == before
    assert site.handle(first_round(start)[2], terms(site)).examples > 0  # the reply on disk


INVALID_PROMPTS = {
    "nan": (lambda value: value * np.nan, "prompt visual is not finite"),
    "infinite": (lambda value: value + np.inf, "prompt visual is not finite"),
    "huge": (lambda value: value + 1e6, "prompt visual has a value beyond 32768"),
    "another shape": (lambda value: value[:, :1], r"prompt visual is float32\(.*\) instead of float32\("),
    "another kind": (lambda value: value.astype(np.float64), "prompt visual is float64"),
}


@pytest.mark.parametrize(("change", "words"), INVALID_PROMPTS.values(), ids=INVALID_PROMPTS)
def test_an_invalid_prompt_is_never_used(site, start, change, words):
    bad = {"visual": change(start["visual"])}
    for message in (Estimate(0, bad), Train(0, bad), Evaluate(0, bad)):
        with pytest.raises(Refused, match=words):
            site.handle(message, terms(site))
    assert not (site.options.folder / "runs/run/state").exists()
    for message in first_round(start):
        site.handle(message, terms(site))
    own = SiteState(site.options.folder / "runs/run/state").state().own
    assert np.isfinite(own["text"]).all()


def test_prompts_that_the_run_does_not_average_are_refused(site, start):
    with pytest.raises(Refused, match=r"\['text', 'visual'\]; in this run they are \['visual'\]"):
        site.handle(Evaluate(0, {**start, "text": start["visual"]}), terms(site))


BEYOND_LIMITS = {
    "memory": ({"model": {"visual_prompts": 1_000_000}}, "model.visual_prompts is 1,000,000, and this site's limit"),
    "time": ({"train": {"epochs": 1_000_000}}, "train.epochs is 1,000,000, and this site's limit is 100"),
    "a long template": (
        {"model": {"template": "a {} " * 200_000}},
        "model.template is 1,000,000 characters, and this site's",
    ),
    "batches": ({"train": {"batch": 10**9}}, "train.batch is 1,000,000,000, and this site's limit is 512"),
    "rounds": ({"rounds": 10**6}, "rounds is 1,000,000, and this site's limit is 1,000"),
}


@pytest.mark.parametrize(("settings", "words"), BEYOND_LIMITS.values(), ids=BEYOND_LIMITS)
def test_a_run_beyond_the_limits_never_begins(site, start, settings, words):
    with pytest.raises(Refused, match=words):
        site.handle(Estimate(0, start), terms(site, changed(**settings)))
    assert list(site.options.folder.iterdir()) == []


def test_an_update_of_one_image_is_not_sent(site, start):
    """Settings of the run that leave one image to train on: the site trains nothing, and reports 0 images."""
    narrow = {"labels": {"confidence_quantile": 0.9, "entropy_quantile": 0.9, "global_allocation": False}}
    requests = [Estimate(0, start), Select(0, 0, None, 1), Train(0, start)]
    careless = at_home(site, site.options.folder / "careless", consent=Consent(min_images=0))
    *_, update = [careless.handle(message, terms(site, changed(**narrow))) for message in requests]
    assert 0 < update.examples < 5
    *_, update = [site.handle(message, terms(site, changed(**narrow))) for message in requests]
    assert update.examples == 0 and update.shared["visual"].tobytes() == start["visual"].tobytes()


WITH_PRIORS = RunConfig.from_mapping(SETTINGS, "test")


def class_sums(site, folder, **changes):
    """Return the first class feature sums of a site, (J, C, 1 + d); the totals are those of this site alone."""
    client = at_home(site, site.options.folder / folder, **changes).client(terms(site, WITH_PRIORS))
    reply, step, state = None, 0, ClientState()
    estimation = Estimation(prior_settings(WITH_PRIORS, 10, site.clip.feature_size))
    while estimation.steps[-1][0].kind != "class_sums":
        reply, state = client.handle(Adapt(0, step, () if reply is None else (reply.sums,)), state)
        estimation.add(reply.sums)
        step += 1
    sums = client.handle(Adapt(0, step, (reply.sums,)), state)[0].sums
    return sums.reshape(-1, 10, 1 + site.clip.feature_size)


def test_class_feature_sums_of_few_images_do_not_leave(site):
    every = class_sums(site, "careless", consent=Consent(min_images=0))
    some = class_sums(site, "careful")
    is_small = every[:, :, 0] < 5
    assert is_small.any() and not is_small.all()
    assert not some[is_small].any()
    assert (some[some[:, :, 0] > 0][:, 0] >= 5).all()


FALSE_TOTALS = {
    "zeros": (lambda own: own * 0, r"of 0 images instead|do not contain this client's own images"),
    "nan": (lambda own: own * np.nan, "not all sums are finite"),
    "of another size": (lambda own: own[:-1], "have the wrong size"),
    "half of the sums": (lambda own: own / 2, "do not contain this client's own images"),
    "features of any length": (lambda own: own + np.eye(1, len(own), len(own) - 11)[0] * 1e6, "do not have unit norm"),
    "logits of any size": (lambda own: own + np.eye(1, len(own), len(own) - 1)[0] * 1e6, "the logits are too large"),
}


@pytest.mark.parametrize(("falsify", "words"), FALSE_TOTALS.values(), ids=FALSE_TOTALS)
def test_totals_without_the_images_of_the_site_are_refused(site, falsify, words):
    client = site.client(terms(site, WITH_PRIORS))
    reply, state = client.handle(Adapt(0, 0), ClientState())
    with pytest.raises(CannotReply, match=words):
        client.handle(Adapt(0, 1, (falsify(reply.sums),)), state)


def test_renamed_runs_count_towards_the_limit(loaded, tmp_path, start):
    site = at_home(loaded, tmp_path, limits=Limits(runs=3))
    clock = [1000.0]
    site.ledger = SiteLedger(tmp_path, lambda: clock[0])
    for number in range(3):
        site.handle(Evaluate(0, None), terms(site, run=f"run-{number}"))
    for number in range(3, 40):
        with pytest.raises(Refused, match=r"^3 runs have begun within a day, and this site's limit is 3$"):
            site.handle(Evaluate(0, None), terms(site, run=f"run-{number}"))
    site.handle(Evaluate(0, start), terms(site, run="run-1"))  # runs that have begun continue
    clock[0] += 24 * 3600 + 1
    site.handle(Evaluate(0, None), terms(site, run="tomorrow"))


def test_the_budget_of_epsilon_is_over_all_runs_and_outlives_their_folders(loaded, tmp_path, start):
    private = changed(privacy={"noise_multiplier": 2.0, "delta": 0.5})  # a delta that makes any epsilon look small
    budget = epsilon_of([2.0] * 3, 1e-5) + 0.01  # of three replies, at the site's own delta
    site = at_home(loaded, tmp_path, limits=Limits(epsilon=budget, runs=100))
    for number in range(3):
        site.handle(Estimate(0, start), terms(site, private, run=f"run-{number}"))
        site = at_home(loaded, tmp_path, limits=site.options.limits)  # also after a restart of the site
    for number in range(3, 6):
        with pytest.raises(Refused, match="this site's budget of epsilon"):
            site.handle(Estimate(0, start), terms(site, private, run=f"run-{number}"))
    site.handle(Estimate(0, start), terms(site, private, run="run-0"))  # the same bits again cost nothing
    assert list(site.ledger._read()[1].values()) == [2.0] * 3
    with pytest.raises(Refused, match=r"requires privacy\.noise_multiplier, and the run has none"):
        site.handle(Estimate(0, start), terms(site, run="open"))


def test_in_secure_aggregation_the_ledger_counts_the_noise_of_all_members():
    config = changed(privacy={"noise_multiplier": 2.0, "secure_aggregation": True})
    message = Estimate(0, {}, tuple("abcde"))
    name, noise = release_of("run", message, config, "5e")
    assert noise == 2.0
    assert release_of("run", message, config, "5f")[0] != name  # another aggregation has other noise
    assert release_of("run", Select(0, 0, None, 5), config, "") is None


def test_a_new_run_is_refused_beyond_the_disk_limit(loaded, tmp_path, start):
    site = at_home(loaded, tmp_path, limits=Limits(disk=0.0))
    site.handle(Evaluate(0, None), terms(site))
    with pytest.raises(Refused, match="no disk space for another run: this site's limit is 0 GB"):
        site.handle(Evaluate(0, None), terms(site, run="second"))


def test_a_site_sends_nothing_before_approval(site, start):
    approvals, shown, notes = [None, False, True], [], []

    def message(run, words):
        shown.append((run, words))
        return approvals.pop(0)

    site.approval = _ApprovalAtTerminal(site.options.folder, message, notes.append)
    for words in ("has not approved this run yet", "has declined this run", "has declined this run"):
        with pytest.raises(Refused, match=words):
            site.handle(Estimate(0, start), terms(site))
    assert not (site.options.folder / "runs").exists() and len(shown) == 2  # a declined run is not shown again
    file = site.options.folder / "pending/run.toml"
    assert notes == [f"run run needs your approval: read {file}, then join with --accept {file}"]
    assert "3 rounds of FedCoPL, 1 epoch each" in shown[0][1]
    site.approval = _ApprovalAtTerminal(site.options.folder, message, notes.append)
    for request in first_round(start):
        site.handle(request, terms(site))
    assert len(shown) == 3  # once for the run, not for each request


def test_accepted_settings_accept_only_these_settings(site, start, tmp_path):
    file = tmp_path / "agreed.toml"
    file.write_text(CONFIG.to_toml())
    site.approval = _approval_by_file(file)
    other = changed(train={"epochs": 2}, privacy={"noise_multiplier": 1.0})
    with pytest.raises(Refused, match=r"has accepted other settings: privacy\.noise_multiplier, train\.epochs$"):
        site.handle(Estimate(0, start), terms(site, other))
    site.handle(Estimate(0, start), terms(site, changed(name="other-name")))


def test_an_unknown_value_of_accept_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match="--accept maybe: there is no such file; use ask, always, or a file of accepted settings"
    ):
        choose_approval("maybe", tmp_path, lambda run, words: None, print)
    (tmp_path / "wrong.toml").write_text("rounds = 'many'")
    with pytest.raises(ConfigError, match=r"wrong\.toml: rounds"):
        choose_approval(str(tmp_path / "wrong.toml"), tmp_path, lambda run, words: None, print)


def test_the_approval_prompt_describes_what_leaves():
    shown = "\n".join(
        _describe_run(changed(privacy={"secure_aggregation": True, "min_sites": 4, "noise_multiplier": 1.5}))
    )
    assert "in secure aggregation over at least 4 sites, with noise of 1.5" in shown
    assert "privacy.noise_multiplier = 1.5" in shown
    assert "image features by class" in "\n".join(_describe_run(RunConfig()))
    hostile = changed(model={"template": "a {}\nyes\u202e"})
    assert "\u202e" not in "".join(_describe_run(hostile)) and "\n" not in "".join(_describe_run(hostile))
    with pytest.raises(ConfigError, match="control character"):
        changed(model={"template": "a {}\x1b[2J"})


def test_class_feature_sums_are_opt_in(loaded, tmp_path, start):
    site = at_home(loaded, tmp_path)
    words = "this site sends no class feature sums, and the run needs them: set priors.prototypes=false"
    with pytest.raises(Refused, match=words):
        site.handle(Evaluate(0, None), terms(site, RunConfig.from_mapping(SETTINGS, "test")))
    without = RunConfig.from_mapping(SETTINGS | {"priors": {"prototypes": False}}, "test")
    site.handle(Evaluate(0, None), terms(site, without))
    with pytest.raises(Refused, match=words):  # also in a run that began without prototypes
        site.handle(Adapt(0, 0), terms(site, RunConfig.from_mapping(SETTINGS, "test")))
    assert "prompts but no class feature sums" in str(site.options.consent)


@pytest.mark.parametrize(("min_sites", "needed"), [(0, 3), (2, 2), (5, 5)])
def test_class_feature_sums_leave_only_under_secure_aggregation_of_enough_sites(min_sites, needed):
    consent = Consent(("visual", "features"), min_sites)
    words = f"class feature sums only under secure aggregation of at least {needed} sites"
    for privacy in ({}, {"secure_aggregation": True, "min_sites": max(needed - 1, 2)}):
        config = RunConfig.from_mapping(SETTINGS | {"privacy": privacy}, "test")
        refused = any(words in objection for objection in consent.objections(Adapt(0, 0), config))
        assert refused == (privacy.get("min_sites", 0) < needed)
    enough = {"secure_aggregation": True, "min_sites": needed}
    config = RunConfig.from_mapping(SETTINGS | {"privacy": enough}, "test")
    assert list(consent.objections(Adapt(0, 0), config)) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"share": ("visuel",)}, "share: 'visuel' is unknown .*; did you mean visual?"),
        ({"share": ("features",)}, "share: name at least one kind of prompts"),
        ({"secure_aggregation": False, "min_sites": 3}, "min-sites: needs secure aggregation"),
    ],
)
def test_contradictory_conditions_are_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        Consent(**wrong)


def test_secure_aggregation_can_be_refused(loaded, tmp_path, start):
    site = at_home(loaded, tmp_path, consent=Consent(secure_aggregation=False))
    with pytest.raises(Refused, match="this site does not allow secure aggregation, which the run uses"):
        site.handle(Estimate(0, start), terms(site, changed(privacy={"secure_aggregation": True})))


@pytest.mark.parametrize("pair", ["epoch=3", "epochs", "epochs=many", "epochs=nan", "epochs=-1"])
def test_an_invalid_limit_is_refused(pair):
    with pytest.raises(ConfigError, match=r"^--limit epoch"):
        Limits.from_pairs([pair])


def test_a_damaged_ledger_is_an_error(site, start):
    (site.options.folder / "ledger.json").write_text(json.dumps({"runs": []}))
    with pytest.raises(RunFolderError, match=r"ledger\.json: is damaged"):
        site.handle(Evaluate(0, None), terms(site))


EXPECTED = Expected({"visual": np.zeros((2, 3), np.float32)}, classes=3, experts=1)
FEW, MANY = np.zeros(9), tuple(np.zeros(9) for _ in range(101))
INVALID_REQUESTS = {
    "many totals": (Adapt(0, 1, MANY), "are more than 100, or not vectors of float64"),
    "integers": (Adapt(0, 1, (FEW.astype(np.int64),)), "are more than 100, or not vectors of float64"),
    "a table": (Adapt(0, 1, (FEW.reshape(3, 3),)), "are more than 100, or not vectors of float64"),
    "infinite": (Adapt(0, 1, (FEW + np.inf,)), "not finite"),
    "not a number": (Adapt(0, 1, (FEW * np.nan,)), "not finite"),
    "a huge number": (Adapt(0, 1, (FEW + 1e16,)), "beyond 1e\\+15"),
    "a negative class prior": (Adapt(0, 0, (), -np.ones(3)), "not a positive share for each class"),
    "a long class prior": (Adapt(0, 0, (), np.full(4, 0.25)), "not a positive share for each class"),
    "a class prior that hides a class": (Adapt(0, 0, (), np.array([0.5, 0.5, 0.0])), "not a positive share"),
    "experts": (
        Train(0, EXPECTED.prompts, (EXPECTED.prompts,) * 2),
        "the prompts of 2 other clients; in this run there are",
    ),
    "totals": (Select(0, 0, np.ones(4, np.int64), 2), "not one number for each of 3 classes"),
    "negative totals": (Select(0, 0, -np.ones(3, np.int64), 2), "its totals are not possible numbers of images"),
    "nobody": (Select(0, 0, None, 0), "its sums are over 0 clients"),
}


@pytest.mark.parametrize(("message", "words"), INVALID_REQUESTS.values(), ids=INVALID_REQUESTS)
def test_a_dishonest_request_is_detected(message, words):
    reason = validate_request(message, EXPECTED)
    assert reason is not None
    assert re.search(words, reason)


def test_honest_requests_are_valid():
    for message in (
        Adapt(0, 0),
        Adapt(0, 1, (FEW,)),
        Adapt(0, 0, (), np.array([0.5, 0.3, 0.2])),
        Train(0, EXPECTED.prompts, (EXPECTED.prompts,)),
        Select(0, 0, np.array([1, 0, 2]), 3),
        Evaluate(0, None),
    ):
        assert validate_request(message, EXPECTED) is None
