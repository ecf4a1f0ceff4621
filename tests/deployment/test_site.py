"""A real site with the built-in model: what it refuses and writes, and that it equals a simulated client."""

import json
import math
import shutil
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from deployment.deployment import NO_PRIORS
from deployment.toolbox import LoopGrid, NotingReporter, digit_sites, failed
from fakes import run
from fedcopl.classifier import load
from fedcopl.config import RunConfig, override
from fedcopl.deployment.server.grid_transport import GridTransport, KnownSites, Timeouts
from fedcopl.deployment.server.rounds import PreparedServer, ServerPlan, serve
from fedcopl.deployment.site.pipeline import reply_to
from fedcopl.deployment.site.policies import _ALSO_SENT, Consent, Limits, sent_fields, sent_summary
from fedcopl.deployment.site.running_site import RunningSite, SiteOptions
from fedcopl.deployment.site.site_state import SiteState
from fedcopl.deployment.terms import Refused, check_pinned, terms_of
from fedcopl.errors import (
    ConfigError,
    DataError,
    FederationError,
    Interrupted,
    ModelError,
    NoClientReplied,
    RunFolderError,
)
from fedcopl.flower_app.client_app import _options_of
from fedcopl.messages import REPLY_TO, Estimate, Evaluate, Select, Train
from fedcopl.report.run_page import write_report
from fedcopl.run.record import read_outcome
from fedcopl.simulation.simulate import LocalTransport, simulate

SETTINGS = {"rounds": 2, "labels": {"refresh_every": 2}, "train": {"epochs": 1}, "model": {"threads": 1}}
SETTINGS |= {"priors": {"logit_bias": False, "prototypes": False}}
CONFIG = RunConfig.from_mapping(SETTINGS, "test")
PLAIN = RunConfig.from_mapping(override(SETTINGS, NO_PRIORS), "test")
ALL = Consent(min_images=0)  # as a simulation's clients


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    digit_sites(root, 2, 30, labelled=12)
    return root


@pytest.fixture(scope="module")
def site(data, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    where = data / "clients/site-a", str(data / "classes.txt"), home
    return RunningSite(SiteOptions("site-a", *where, {"threads": 1}, consent=ALL))


@pytest.fixture(scope="module")
def first_request(site):
    """The server state and the terms of a run that the site accepts."""
    classes = site.prepared.dataset.classes
    server = PreparedServer(None, CONFIG, classes, site.clip).first_state()
    return server, terms_of("run-1", 1, CONFIG, classes, site.model)


def test_a_site_reads_its_images_and_classes(site):
    assert site.name == "site-a"
    assert len(site.prepared.dataset.train) == 30
    assert site.has_test_set
    assert site.classes.startswith("10 classes, ")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"classes": "9 classes, 00"}, "classes: the server has 9 classes, 00, this site has 10 classes, "),
        ({"model": "ViT-B/32 00"}, "model: the server has ViT-B/32 00, this site has [0-9a-f]{16}$"),
        ({"version": "9.9"}, "fedcopl: the server has 9.9, this site has 0."),
    ],
)
def test_an_incompatible_site_refuses_in_one_line_and_does_nothing(site, first_request, change, line):
    server, terms = first_request
    wrong = type(terms)(**vars(terms) | change | {"run": "another"})
    with pytest.raises(Refused, match=f"^{line}") as refusal:
        site.handle(Estimate(0, server.shared), wrong)
    assert "\n" not in str(refusal.value)
    assert not (site.options.folder / "runs" / "another").exists()


CONDITIONS = {
    "text prompts": ({}, {"text": 1}, "the run averages the prompt 'text', and this site shares only visual"),
    "no sums": ({"min_sites": 2}, {}, "this site requires privacy.secure_aggregation, and the run has none"),
    "small sums": (
        {"min_sites": 3},
        {"privacy.secure_aggregation": True},
        "this site requires sums over at least 3 sites, and privacy.min_sites is 2",
    ),
    "no noise": ({"min_noise": 0.5}, {}, "this site requires privacy.noise_multiplier >= 0.5, and the run has 0"),
}


@pytest.mark.parametrize(("expected", "run_has", "line"), CONDITIONS.values(), ids=CONDITIONS)
def test_a_run_that_violates_the_conditions_of_a_site_is_refused(site, first_request, expected, run_has, line):
    server, terms = first_request
    settings = {**terms.settings, **{key: value for key, value in run_has.items() if "." in key}}
    shared = {**server.shared, **{key: server.shared["visual"] for key in run_has if "." not in key}}
    strict = copy(site)
    strict.options = replace(site.options, consent=Consent(**expected))
    with pytest.raises(Refused, match=f"^{line}$"):
        strict.handle(Estimate(0, shared), type(terms)(**vars(terms) | {"run": "unwelcome", "settings": settings}))
    assert not (site.options.folder / "runs" / "unwelcome").exists()


@pytest.mark.parametrize("wrong", [{"min_sites": -1}, {"min_noise": -0.5}, {"min_noise": math.nan}, {"share": ()}])
def test_an_invalid_condition_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"share|min-noise"):
        Consent(**wrong)


def test_requests_that_meet_the_conditions_are_accepted():
    private = RunConfig.from_mapping(
        {"privacy": {"secure_aggregation": True, "min_sites": 3, "noise_multiplier": 0.5}}, "test"
    )
    consent = Consent(("visual", "text"), min_sites=3, min_noise=0.5)  # with noise no feature sums are requested
    prompts = {"visual": np.zeros(1), "text": np.zeros(1)}
    assert list(consent.objections(Train(0, prompts), private)) == []
    assert str(consent) == (
        "it shares visual, text prompts but no class feature sums, only in secure aggregation over at least "
        "3 sites, with noise of at least 0.5, in updates and sums of at least 5 images, "
        "and does not report its test accuracy"
    )


def test_a_run_keeps_the_settings_it_began_with(site, first_request):
    server, terms = first_request
    begun = type(terms)(**vars(terms) | {"run": "pinned"})
    site.handle(Estimate(0, server.shared), begun)
    changed = {**begun.settings, "train.epochs": 5}
    with pytest.raises(Refused, match=r"have changed: settings\.train\.epochs was 1, is 5$"):
        site.handle(Estimate(0, server.shared), type(terms)(**vars(begun) | {"settings": changed}))
    with pytest.raises(Refused, match="under another name or number"):
        site.handle(Estimate(0, server.shared), begun.for_site(1))


@pytest.fixture
def few(data, tmp_path):
    """Return a function that starts a site with six images, from the same folder at each call."""
    images = tmp_path / "images"
    images.mkdir()
    for number in range(6):
        shutil.copy(data / f"clients/site-a/train/{number:03}.png", images)
    options = SiteOptions("few", images, str(data / "classes.txt"), tmp_path / "home", {"threads": 1}, consent=ALL)
    return lambda: RunningSite(options)


def test_a_run_keeps_the_classes_it_began_with(tmp_path):
    """Even if server and site change them together, as after a restart of both with another file of classes."""
    began = terms_of("run", 1, PLAIN, ["a", "b"], "model 1")
    check_pinned(tmp_path / "pinned.json", began, "2 images, x")
    with pytest.raises(Refused, match="the classes of this run have changed: they were 2 classes"):
        check_pinned(tmp_path / "pinned.json", terms_of("run", 1, PLAIN, ["b", "a"], "model 1"), "2 images, x")


def test_a_run_keeps_the_images_it_began_with(few, first_request, caplog):
    server, terms = first_request
    site = few()
    site.handle(Estimate(0, server.shared), terms)
    site.handle(Select(0, 0, None, 1), terms)
    images = site.options.images
    shutil.copy(images / "005.png", images / "-new.png")  # sorts first: every label would move to the next image
    grid, progress = LoopGrid({"few": lambda message: reply_to(message, few)}), NotingReporter()
    federation = GridTransport(grid, terms, KnownSites({"few": 0}), Timeouts(60, 0, 0.01), progress)
    assert federation.request({"few": Train(0, server.shared)}) == {}
    words = "images: not those that this run began with; restore them, or wait for the next run"
    assert progress.notes == [f"round 1, Train: few is left out: refused: {words}"]  # without the numbers of images
    assert f"{words}; it began with 6 images, " in caplog.text and "; now there are 7 images, " in caplog.text
    (images / "-new.png").unlink()
    assert few().handle(Train(0, server.shared), terms).examples > 0


def test_replaced_or_renamed_images_are_detected(few, first_request):
    _, terms = first_request
    site = few()
    site.handle(Evaluate(0, None), terms)
    images = site.options.images
    shutil.copy(images / "000.png", images / "kept")  # no image file: nothing has changed
    few().handle(Evaluate(0, None), terms)
    shutil.copy(images / "001.png", images / "000.png")
    with pytest.raises(Refused, match=r"^images: "):
        few().handle(Evaluate(0, None), terms)
    (images / "kept").replace(images / "000.png")
    few().handle(Evaluate(0, None), terms)
    (images / "000.png").rename(images / "006.png")
    with pytest.raises(Refused, match=r"^images: "):
        few().handle(Evaluate(0, None), terms)


def test_damaged_terms_are_named(few, first_request):
    _, terms = first_request
    site = few()
    site.handle(Evaluate(0, None), terms)
    (site.options.folder / "runs/run-1/terms.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"terms\.json: is damaged"):
        site.handle(Evaluate(0, None), terms)


@pytest.mark.parametrize("run", ["..", ".", ""])
def test_a_run_of_any_name_stays_in_its_folder(few, first_request, run):
    _, terms = first_request
    site = few()
    site.handle(Evaluate(0, None), type(terms)(**vars(terms) | {"run": run}))
    assert sorted(path.name for path in site.options.folder.iterdir()) == ["ledger.json", "runs", "site.secret"]
    [folder] = (site.options.folder / "runs").iterdir()
    assert (folder / "terms.json").exists()


def test_a_site_with_an_incomplete_secret_does_not_start(few):
    site = few()
    (site.options.folder / "site.secret").write_bytes(b"")
    with pytest.raises(FederationError, match=r"site\.secret: has 0 bytes"):
        few()


@pytest.mark.parametrize("expected", [{"min_sites": 2}, {"min_noise": 0.5}])
def test_a_site_that_requires_masks_or_noise_does_not_report_accuracy(site, first_request, expected, tmp_path):
    _, terms = first_request
    strict = RunningSite(replace(site.options, folder=tmp_path, consent=Consent(**expected)))
    assert strict.has_test_set
    settings = {**terms.settings, "privacy.secure_aggregation": True, "privacy.noise_multiplier": 0.5}
    reply = strict.handle(Evaluate(0, None), type(terms)(**vars(terms) | {"settings": settings}))
    assert (reply.correct, reply.examples) == (0, 0)
    assert str(strict.options.consent).endswith("and does not report its test accuracy")


def test_a_site_cannot_set_the_settings_of_the_server():
    with pytest.raises(ConfigError, match=r"model\.text_prompts: is set by the server; a site sets backbone"):
        SiteOptions("a", "x", model={"text_prompts": 4}).settings()


def test_two_sites_over_the_protocol_equal_the_simulation(site, data, first_request, tmp_path):
    server, terms = first_request
    where = data / "clients/site-b", str(data / "classes.txt"), tmp_path / "b"
    other = RunningSite(SiteOptions("site-b", *where, {"threads": 1}, consent=ALL))
    config = RunConfig.from_mapping(
        {**SETTINGS, "data": {"source": "folder", "path": str(data), "partition": "natural"}}, "test"
    )
    simulate(config, tmp_path / "run")

    class Sites(LocalTransport):
        def request(self, requests):
            numbers = {"site-a": 0, "site-b": 1}
            both = (site, other)
            return {
                name: both[numbers[name]].handle(message, terms.for_site(numbers[name]))
                for name, message in requests.items()
            }

    final = run(CONFIG, Sites({"site-a": None, "site-b": None}), server, lambda *_: None)
    expected = load_file(tmp_path / "run/prompts/server.safetensors")
    assert final.shared["visual"].tobytes() == expected["visual"].tobytes()
    for member in (site, other):
        expected = load_file(tmp_path / f"run/prompts/clients/{member.name}.safetensors")
        written = load_file(member.options.folder / f"runs/run-1/prompts/clients/{member.name}.safetensors")
        assert written["text"].tobytes() == expected["text"].tobytes()
        # its priors equal the simulation's, including its class prior
        at_site, simulated = load(member.options.folder / "runs/run-1"), load(tmp_path / "run", client=member.name)
        assert at_site.prior is not None and at_site.fingerprint == simulated.fingerprint
    results = json.loads((site.options.folder / "runs/run-1/results.json").read_text())
    simulated = json.loads((tmp_path / "run/results.json").read_text())
    assert results["clients"][0]["final"] == simulated["clients"][0]["final"]
    # `fedcopl predict` finds the model
    assert load(site.options.folder / "runs/run-1").recipe.classes == site.prepared.dataset.classes
    assert (site.options.folder / "runs/run-1/labels/images.json").exists()


@pytest.fixture(scope="module")
def two(data, tmp_path_factory):
    """Both sites as nodes of a grid, with separate folders."""
    homes = tmp_path_factory.mktemp("two")
    sites = {
        name: RunningSite(
            SiteOptions(
                name, data / "clients" / name, str(data / "classes.txt"), homes / name, {"threads": 1}, consent=ALL
            )
        )
        for name in ("site-a", "site-b")
    }
    return {name: lambda message, site=site: reply_to(message, lambda: site) for name, site in sites.items()}


class StopAfterOne(NotingReporter):
    def round_done(self, record):
        raise Interrupted("enough")


def served(nodes, plan, progress=None):
    return serve(LoopGrid(nodes), PreparedServer.prepare(plan), progress or NotingReporter())


def test_a_server_over_a_grid_can_be_stopped_and_reports_its_results(two, data, tmp_path):
    timeouts = Timeouts(60, 2, 0.01)
    whole = served(two, ServerPlan(PLAIN, data / "classes.txt", tmp_path / "whole", timeouts))
    plan = ServerPlan(PLAIN, data / "classes.txt", tmp_path / "run", timeouts)
    with pytest.raises(Interrupted):
        served(two, plan, StopAfterOne())
    progress = json.loads((tmp_path / "run/progress.json").read_text())
    assert [record["round"] for record in progress["rounds"]] == [0]
    resumed = served(two, replace(plan, resume=True))
    prompts = [tmp_path / run / "prompts/server.safetensors" for run in ("whole", "run")]
    assert prompts[0].read_bytes() == prompts[1].read_bytes()
    for outcome in (whole, resumed):
        assert outcome.sites == ("site-a", "site-b") and outcome.shared == ("visual",)
        assert [record.participants for record in outcome.rounds] == [2, 2]
        assert 0 < outcome.final.macro <= 1  # these sites have labels
        assert sum(outcome.rounds[0].totals) > 0 and outcome.rounds[1].totals is None
    kept = json.loads((tmp_path / "run/server.json").read_text())
    assert kept["starts"] == 2 and kept["sites"] == {"site-a": 0, "site-b": 1}
    assert not (tmp_path / "run/progress.json").exists()
    assert read_outcome(json.loads((tmp_path / "run/results.json").read_text())) == resumed
    write_report(tmp_path / "run")
    assert "site-a" in (tmp_path / "run/report.html").read_text()


@pytest.mark.parametrize("step", ["estimate", "train"])  # a failed evaluation does not end the run
def test_the_reason_of_an_early_end_is_written(two, data, tmp_path, step):
    plan = ServerPlan(PLAIN, data / "classes.txt", tmp_path / "run", Timeouts(60, 2, 0.01))
    good = two["site-b"]

    def broken(message):
        if message.metadata.message_type == f"query.{step}":
            return failed(message, "UNKNOWN", "out of order")
        return good(message)

    with pytest.raises(NoClientReplied, match="at least 2 are needed"):
        served(two | {"site-b": broken}, plan)
    assert f"step {step.capitalize()}" in (tmp_path / "run/ended.txt").read_text()
    served(two, replace(plan, resume=True))
    assert not (tmp_path / "run/ended.txt").exists()


def test_a_full_disk_ends_a_run_that_can_be_resumed(two, data, tmp_path):
    plan = ServerPlan(PLAIN, data / "classes.txt", tmp_path / "run", Timeouts(60, 2, 0.01))
    good, obstacle = two["site-b"], tmp_path / "run/checkpoint.safetensors"

    def block_checkpoint(message):
        if message.metadata.message_type == "query.train":
            obstacle.mkdir()
        return good(message)

    with pytest.raises(
        RunFolderError, match=r"cannot be written: .*; finished rounds are kept: fix this, then continue"
    ):
        served(two | {"site-b": block_checkpoint}, plan)
    obstacle.rmdir()
    assert len(served(two, replace(plan, resume=True)).rounds) == PLAIN.rounds


def test_the_corrections_of_an_expert_are_trained_on(data, first_request, tmp_path):
    server, terms = first_request
    corrections = tmp_path / "corrections.csv"
    corrections.write_text("file,label\ntrain/000.png,seven\n")
    options = SiteOptions(
        "site-a",
        data / "clients/site-a",
        str(data / "classes.txt"),
        tmp_path / "home",
        {"threads": 1},
        str(corrections),
    )
    site = RunningSite(options)
    assert (site.corrections.index.tolist(), site.corrections.label.tolist()) == ([0], [7])
    site.handle(Estimate(0, server.shared), terms)
    site.handle(Select(0, 0, np.zeros(10, np.int64), 1), terms)
    chosen = SiteState(tmp_path / "home/runs/run-1/state").state().selection
    assert chosen.label[chosen.index.tolist().index(0)] == 7
    corrections.write_text("file,label\nother.png,seven\n")
    with pytest.raises(DataError, match="labels none of the training images"):
        RunningSite(options)


def test_zero_shot_needs_no_training(site, first_request):
    _, terms = first_request
    score = site.handle(Evaluate(0, None), type(terms)(**vars(terms) | {"run": "fresh"}))
    assert 0 <= score.correct <= score.examples == 12


def test_an_incomplete_node_config_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="images: is missing"):
        _options_of({"name": "a", "folder": "site"})
    options = _options_of({"name": "a", "folder": "site", "images": str(tmp_path), "model.threads": 2})
    assert options.settings().model.threads == 2
    assert options.consent == Consent(("visual",), 0, 0.0, 5)
    strict = {"share": "visual,text", "min-sites": 4, "min-noise": 1, "corrections": "expert.csv"}
    strict |= {"min-images": 9, "limit": "epochs=7,runs=2"}
    options = _options_of({"name": "a", "folder": "site", "images": "x", **strict})
    assert options.consent == Consent(("visual", "text"), 4, 1.0, 9) and options.limits == Limits(epochs=7, runs=2)
    assert options.corrections == "expert.csv"


def test_every_field_that_leaves_has_a_description():
    named = {line.split(":")[0] for line in sent_fields() if "." in line.split(":")[0]}
    assert named == {f"{kind.__name__}.{name}" for kind in REPLY_TO.values() for name in kind.__dataclass_fields__}
    assert set(_ALSO_SENT) < set(sent_fields())


def test_the_summary_of_what_leaves_is_that_of_the_privacy_page():
    lines = sent_summary(Consent())
    page = (Path(__file__).parents[2] / "docs/privacy.md").read_text()
    assert len(lines) == 5 and all(f"* {line}\n" in page for line in lines)
    assert "which this site does not allow" in lines[3] and "at least 3 sites" in lines[3]
    shared = sent_summary(Consent(("visual", "features"), 5, min_images=7))
    assert "which this site does allow" in shared[3] and "at least 5 sites" in shared[3] and "7 images" in shared[3]


def test_a_site_has_a_secret_seed_for_its_noise(site):
    secret = site.options.folder / "site.secret"
    assert len(secret.read_bytes()) == 32
    assert secret.stat().st_mode & 0o777 == 0o600
    assert np.frombuffer(secret.read_bytes(), np.uint8).any()


def test_join_prints_only_fields_that_the_conditions_allow():
    def named(consent):
        return {line.split(":")[0] for line in sent_fields(consent) if "." in line.split(":")[0]}

    masked = {"Adapted.masked", "Estimated.masked", "Trained.masked"}
    only_sums = {"PublicKeys.keys", "PublicKeys.voucher", "KeyShares.sealed", "Unmasked.shares"}
    assert named(Consent(min_sites=3)) == masked | only_sums
    assert named(Consent(secure_aggregation=False)) == named(None) - masked - only_sums
    assert named(Consent()) == named(None)


def test_a_class_name_too_long_for_any_prompt_is_refused(data, tmp_path):
    (tmp_path / "classes.txt").write_text("cat\n" + "dog " * 300)
    (tmp_path / "images").mkdir()
    shutil.copy(next((data / "clients/site-a").rglob("*.png")), tmp_path / "images/0.png")
    options = SiteOptions("a", tmp_path / "images", str(tmp_path / "classes.txt"), tmp_path / "home", {"threads": 1})
    with pytest.raises(
        ModelError, match=r"glyph-clip reads at most 40 tokens; this sentence has \d+: 'a photo of a dog"
    ) as error:
        RunningSite(options)
    assert len(str(error.value)) < 200
