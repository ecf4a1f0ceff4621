"""Stored outcomes whose final accuracy is a function of the settings."""

from dataclasses import replace

from fedcopl_experiments.run_key import run_key
from fedcopl_experiments.scales import ExperimentSetup, find_scale
from stored_runs import outcome_of, stored

PAPER, DEMO, SMOKE = (ExperimentSetup(find_scale(name)) for name in ("paper", "demo", "smoke"))


class FakeOutcomes:
    """A store in which every run has the final accuracy `rule(config)`; None: the run is not stored."""

    def __init__(self, rule, **more):
        self._rule, self._more = rule, more

    def outcome(self, config):
        final = self._rule(config)
        return None if final is None else replace(outcome_of(config, final), **self._more)

    def run(self, config):
        final = self._rule(config)
        return None if final is None else stored(run_key(config), final, **config.model_dump())


NO_RUNS = FakeOutcomes(lambda config: None)
