"""A real site with the embedded model: what it refuses, what it writes down, and that it is a simulation's client."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from engines.flower.toolbox import digit_sites
from fedcopl import RunConfig, simulate
from fedcopl.classifier import load
from fedcopl.engines.flower.leaving import leaving
from fedcopl.engines.flower.local_sites import home_of
from fedcopl.engines.flower.server import first_server
from fedcopl.engines.flower.site import Home, Site
from fedcopl.engines.flower.site_state import Refused
from fedcopl.engines.flower.terms import terms_of
from fedcopl.engines.local import LocalFederation
from fedcopl.errors import ConfigError
from fedcopl.messages import REPLY_TO, Estimate, Evaluate
from fedcopl.protocol import run

SETTINGS = {"rounds": 2, "labels": {"refresh_every": 2}, "train": {"epochs": 1}, "model": {"threads": 1}}
CONFIG = RunConfig.from_mapping(SETTINGS, "test")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    digit_sites(root, 2, 30, labelled=12)
    return root


@pytest.fixture(scope="module")
def site(data, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return Site(Home("site-a", data / "clients/site-a", str(data / "classes.txt"), home, {"threads": 1}))


@pytest.fixture(scope="module")
def asked(site):
    """The first question of a run, on the right terms."""
    server, model = first_server(CONFIG, 10)
    return server, terms_of("run-1", 1, CONFIG, site.prepared.dataset.classes, model)


def test_a_site_knows_its_own(site):
    assert site.name == "site-a"
    assert len(site.prepared.dataset.train) == 30
    assert site.has_exam
    assert site.classes.startswith("10 classes, ")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"classes": "9 classes, 00"}, "classes: the server has 9 classes, 00, this site has 10 classes, "),
        ({"model": "ViT-B/32 00"}, "model: the server has ViT-B/32 00, this site has glyph-clip "),
        ({"version": "9.9"}, "fedcopl: the server has 9.9, this site has 0."),
    ],
)
def test_a_site_that_does_not_fit_refuses_in_one_line_and_does_nothing(site, asked, change, line):
    server, terms = asked
    wrong = type(terms)(**vars(terms) | change | {"run": "another"})
    with pytest.raises(Refused, match=f"^{line}") as refusal:
        site.answer(Estimate(0, server.shared), wrong)
    assert "\n" not in str(refusal.value)
    assert not (site.home.folder / "runs" / "another").exists()


def test_settings_that_are_the_servers_are_not_the_sites():
    with pytest.raises(ConfigError, match=r"model\.text_prompts: is the server's to say; a site sets backbone"):
        Home("a", "x", model={"text_prompts": 4}).own_model()


def test_two_sites_over_the_protocol_are_the_simulation(site, data, asked, tmp_path):
    server, terms = asked
    other = Site(Home("site-b", data / "clients/site-b", str(data / "classes.txt"), tmp_path / "b", {"threads": 1}))
    config = RunConfig.from_mapping(
        {**SETTINGS, "data": {"source": "folder", "path": str(data), "partition": "natural"}}, "test"
    )
    simulate(config, tmp_path / "run")

    class Sites(LocalFederation):
        def _ask_one(self, client, ask):
            number = ["site-a", "site-b"].index(client)
            return (site, other)[number].answer(ask, terms.at(number))

    final = run(CONFIG, Sites({"site-a": None, "site-b": None}), server, lambda *_: None)
    wanted = load_file(tmp_path / "run/prompts/server.safetensors")
    assert final.shared["visual"].tobytes() == wanted["visual"].tobytes()
    for one in (site, other):
        wanted = load_file(tmp_path / f"run/prompts/clients/{one.name}.safetensors")
        written = load_file(one.home.folder / f"runs/run-1/prompts/clients/{one.name}.safetensors")
        assert written["text"].tobytes() == wanted["text"].tobytes()
    told = json.loads((site.home.folder / "runs/run-1/results.json").read_text())
    simulated = json.loads((tmp_path / "run/results.json").read_text())
    assert told["clients"][0]["final"] == simulated["clients"][0]["final"]
    # the model lies where `fedcopl predict` looks for one
    assert load(site.home.folder / "runs/run-1").recipe.classes == site.prepared.dataset.classes
    assert (site.home.folder / "runs/run-1/labels/images.json").exists()


def test_zero_shot_needs_no_training(site, asked):
    _, terms = asked
    score = site.answer(Evaluate(0, None), type(terms)(**vars(terms) | {"run": "fresh"}))
    assert 0 <= score.correct <= score.examples == 12


def test_a_node_that_says_too_little_of_itself_is_told_what_is_missing():
    with pytest.raises(ConfigError, match="images: is missing"):
        home_of({"name": "a", "folder": "site"})
    home = home_of({"name": "a", "folder": "site", "images": "x", "model.threads": 2})
    assert home.own_model().threads == 2


def test_every_field_that_leaves_is_named_to_the_people_at_the_site():
    named = {line.split(":")[0] for line in leaving() if "." in line.split(":")[0]}
    assert named == {f"{kind.__name__}.{name}" for kind in REPLY_TO.values() for name in kind.__dataclass_fields__}


def test_noise_comes_from_a_secret_of_the_sites_own(site):
    secret = site.home.folder / "site.secret"
    assert len(secret.read_bytes()) == 32
    assert secret.stat().st_mode & 0o777 == 0o600
    assert np.frombuffer(secret.read_bytes(), np.uint8).any()
