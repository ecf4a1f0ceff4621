"""Whole runs with privacy switched on, on the built-in model and real digits."""

import json

import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from fedcopl.cli import app
from fedcopl.cli.show import _facts
from fedcopl.config import RunConfig, override
from fedcopl.errors import ConfigError
from fedcopl.privacy.accountant import PrivacyStatement, epsilon_of, noise_for
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.run.record import to_plain
from fedcopl.simulation.simulate import simulate
from small_digits import small_digits

QUICK = ["rounds=2", "clients=3", "refresh_every=2", "epochs=1", "threads=1", "everywhere=false"]
QUICK += ["priors.logit_bias=false", "priors.label_shift=false", "priors.prototypes=false"]
BOTH = ["secure_aggregation=true", "noise_multiplier=0.5"]


def config_of(*pairs):
    return RunConfig.from_mapping(override({}, [*QUICK, *pairs]), "test")


def prompts(folder):
    return load_file(folder / "prompts" / "server.safetensors")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "run"
    return simulate(config_of("rounds=1"), folder, dataset=small_digits()), folder


@pytest.fixture(scope="module")
def noised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noised") / "run"
    return simulate(config_of(*BOTH), folder, dataset=small_digits()), folder


def test_secure_aggregation_changes_no_result(plain, tmp_path):
    one, folder = plain
    other = simulate(config_of("rounds=1", "secure_aggregation=true"), tmp_path / "run", dataset=small_digits())
    assert other.refreshes == one.refreshes  # every count and every pseudo label
    assert prompts(tmp_path / "run")["visual"] == pytest.approx(prompts(folder)["visual"], rel=2**-22, abs=2**-33)
    [before], [after] = one.rounds, other.rounds
    assert after.loss == pytest.approx(before.loss, abs=2**-32)
    assert after.examples == before.examples > 0
    assert "visual" not in after.drift  # the server does not see the updates of single clients
    assert (one.privacy, other.privacy) == (None, PrivacyStatement(secure_aggregation=True))


def test_the_outcome_has_the_privacy_statement(noised):
    results, folder = noised
    stated = results.privacy
    assert stated.epsilon == epsilon_of([0.5] * 3, 1e-5)  # prompts in two rounds, counts in one
    assert (stated.delta, stated.unit, stated.releases) == (1e-5, "one site", 3)
    assert json.loads((folder / "results.json").read_text()) == to_plain(results)
    facts = dict(_facts(results))
    assert facts["the server sees"] == "sums over the clients only, with noise"
    assert facts["privacy"] == f"epsilon {stated.epsilon:.3g}, delta 1e-05 for one site, 3 releases"
    assert all(record.loss is None for record in results.rounds)


class StopAfterOne(ProgressReporter):
    def round_done(self, record):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_noise_is_the_same_after_resuming(noised, tmp_path):
    results, folder = noised
    with pytest.raises(KeyboardInterrupt):
        simulate(config_of(*BOTH), tmp_path / "run", progress=StopAfterOne(), dataset=small_digits())
    resumed = simulate(config_of(*BOTH), tmp_path / "run", resume=True, dataset=small_digits())
    assert resumed.privacy == results.privacy
    assert (prompts(tmp_path / "run")["visual"] == prompts(folder)["visual"]).all()


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        (["method=pfedmoap", "secure_aggregation=true"], "method=pfedmoap sends clients each other's prompts"),
        (["method=central", "noise_multiplier=1"], "all images are in one place"),
    ],
)
def test_impossible_settings_are_refused_before_the_run(pairs, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        simulate(config_of(*pairs), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def output_of(*arguments):
    done = CliRunner().invoke(app, ["privacy", *arguments], catch_exceptions=True)
    if isinstance(done.exception, ConfigError):
        return str(done.exception)
    assert done.exit_code == 0
    return done.stdout


def test_the_privacy_command_computes_noise_and_epsilon():
    found = output_of("--epsilon", "8", "--rounds", "20", "--refresh-every", "5")
    noise = float(found.split()[1])
    assert noise_for(8, 1e-5, 27) <= noise <= noise_for(8, 1e-5, 27) + 1e-4
    assert "27: prompts in 20 rounds, class counts at 4 refreshes, logit bias in 3 steps" in found
    back = output_of("--noise-multiplier", str(noise))
    assert back == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name either --epsilon or --noise-multiplier"),
        (["--epsilon", "1", "--noise-multiplier", "1"], "name either --epsilon or --noise-multiplier"),
        (["--epsilon", "0"], "--epsilon: should be above 0"),
        (["--noise-multiplier", "nan"], "--noise-multiplier: should be above 0"),
        (["--noise-multiplier", "1", "--rounds", "0"], "rounds: should be at least 1"),
        (["--noise-multiplier", "1", "--delta", "1"], "privacy.delta: should be less than 1"),
    ],
)
def test_errors_of_the_privacy_command_name_the_setting(arguments, message):
    assert message in output_of(*arguments)
