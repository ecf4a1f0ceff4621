"""What lying sites cost the honest ones: the demo with ten sites, none, one and two of them lying, by rule and by lie.

.venv/bin/python tools/lying_sites.py            # all of it, into a page; what was measured before is kept
.venv/bin/python tools/lying_sites.py --priors 21 22 23     # what lies in the sums for the priors cost: prints a table
"""

import argparse
import json
import math
import statistics
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import numpy as np

from fedcopl.algorithm import FloatArray
from fedcopl.algorithm.metrics import Score
from fedcopl.config import RunConfig, override
from fedcopl.federation import server
from fedcopl.files import write_text
from fedcopl.messages import Adapt, Adapted, Estimated, Reply, Request, Selected, Shared, Train, Trained
from fedcopl.priors.estimation import Estimation, Settings
from fedcopl.rng import stream
from fedcopl.run.progress_reporter import SilentReporter
from fedcopl.simulation.assemble import Simulation, assemble
from fedcopl.simulation.simulate import LocalTransport

PAGE = Path(__file__).resolve().parents[1] / "experiments" / "byzantine-clients.md"
BEGIN, END = "<!-- made by tools/lying_sites.py -->\n", "<!-- end -->\n"
SHORT = ("clients=10", "rounds=2", "epochs=2", "evaluation.every=2", "evaluation.everywhere=false")
NOTHING_ELSE = ("logit_bias=false", "label_shift=false", "prototypes=false", "holdout=0")
RULES = {
    "mean, not bounded": ("bounded=false",),
    "mean, bounded": (),
    "trimmed": ("robust=trimmed",),
    "median": ("robust=median",),
    "krum": ("robust=krum",),
}
LIARS = ("client-3", "client-7")
Lie = Callable[[Request, Reply], Reply]
Costs = dict[str, tuple[float, set[str]]]
"""Lie -> points lost, and the sites that were dropped or clipped."""


def moved(request: Request, reply: Reply, move: Callable[[Shared, Shared], Shared]) -> Reply:
    """Replace the update, and leave out the hold-out check."""
    if not isinstance(request, Train) or not isinstance(reply, Trained):
        return reply
    return replace(reply, shared=move(request.shared, reply.shared), examples=max(reply.examples, 1), checks=())


def by_factor(factor: float) -> Lie:
    def move(sent: Shared, own: Shared) -> Shared:
        return {name: (sent[name] + np.float32(factor) * (value - sent[name])) for name, value in own.items()}

    return lambda request, reply: moved(request, reply, move)


def at_random(request: Request, reply: Reply) -> Reply:
    random = stream(1, "lies", request.round)

    def move(sent: Shared, own: Shared) -> Shared:
        return {name: random.normal(size=value.shape).astype(np.float32) for name, value in own.items()}

    return moved(request, reply, move)


def as_of_many(request: Request, reply: Reply) -> Reply:
    """A thousand times its images, in all it says, and its update turned round."""
    match reply:
        case Adapted(sums=sums) if sums is not None:
            return Adapted(sums * 1000)
        case Estimated(counts=counts) if counts is not None:
            return Estimated(counts * 1000)
        case Selected(images=images, examples=examples) if images is not None and examples is not None:
            return replace(reply, images=1000 * images, examples=1000 * examples)
        case Trained(examples=examples):
            return by_factor(-1)(request, replace(reply, examples=1000 * examples))
    return reply


def of_other_classes(request: Request, reply: Reply) -> Reply:
    """Send the sums of each class as those of the next, in all steps."""

    def next_class(kind: str, part: FloatArray, classes: int) -> FloatArray:
        if kind == "moments":
            return np.concatenate([part[:1], np.roll(part[1 : 1 + classes], 1), part[1 + classes :]])
        return np.roll(part, 1, AXES[kind]) if kind in AXES else part

    return _changed_parts(request, reply, next_class)


def of_one_class(request: Request, reply: Reply) -> Reply:
    """Assign all images to the first class, in all steps and whatever the logit bias is."""

    def first_class(kind: str, part: FloatArray, classes: int) -> FloatArray:
        if kind == "moments":
            zero_shot = np.eye(1, classes)[0] * part[1 : 1 + classes].sum()
            return np.concatenate([part[:1], zero_shot, part[1 + classes :]])
        if kind not in AXES:
            return part
        only = np.zeros_like(part)
        np.moveaxis(only, AXES[kind], 0)[0] = part.sum(axis=AXES[kind])
        return only

    return _changed_parts(request, reply, first_class)


def of_one_strength(request: Request, reply: Reply) -> Reply:
    """Report 2,000 nats for the common class prior, and against any other."""

    def one_strength(kind: str, part: FloatArray, classes: int) -> FloatArray:
        if kind not in ("evidence", "agreement"):
            return part
        lie = np.full_like(part, -2000.0)  # 30 to 100 nats per image on the demo: more than images have
        lie[..., 0] = 2000.0
        return lie

    return _changed_parts(request, reply, one_strength)


AXES = {"predicted": 1, "class_sums": 1, "view_sums": 2}  # of the classes


def _changed_parts(request: Request, reply: Reply, change: Callable[[str, FloatArray, int], FloatArray]) -> Reply:
    if not isinstance(request, Adapt) or not isinstance(reply, Adapted) or reply.sums is None:
        return reply
    settings, parts, start = LyingSites.estimation.settings, [], 0
    for statistic in LyingSites.estimation.steps[request.step]:
        shape = statistic.shape(settings.classes, settings.width)
        part = reply.sums[start : start + math.prod(shape)].reshape(shape)
        start += part.size
        parts.append(change(statistic.kind, part, settings.classes).ravel())
    return Adapted(np.concatenate(parts))


UPDATES: Mapping[str, Lie] = {
    "random prompts": at_random,
    "update × 100": by_factor(100),
    "update × −1": by_factor(-1),
    "1000 × images, update × −1": as_of_many,
}
PRIORS: Mapping[str, Lie] = {
    "sums of the next class": of_other_classes,
    "all images in one class": of_one_class,
    "all evidence for one strength": of_one_strength,
    "1000 × images": as_of_many,
}
LIES = UPDATES | PRIORS


@dataclass(frozen=True)
class Study:
    """One table."""

    title: str
    settings: tuple[str, ...]
    rules: tuple[str, ...]
    lies: tuple[str, ...]
    liars: tuple[int, ...]

    def cases(self) -> list[tuple[str, str, int]]:
        told = [(rule, lie, many) for lie in self.lies for many in self.liars for rule in self.rules]
        return [*((rule, "", 0) for rule in self.rules), *told]


STUDIES = {
    "updates": Study("no priors, no hold-out checks", NOTHING_ELSE, tuple(RULES), tuple(UPDATES), (1, 2)),
    "default": Study(
        "priors and hold-out checks on, as by default",
        (),
        ("mean, not bounded", "mean, bounded"),
        ("update × 100", "1000 × images, update × −1", "sums of the next class", "all images in one class"),
        (2,),
    ),
}


class LyingSites(LocalTransport):
    """The first of LIARS send changed replies, and keep them as their own; the others are honest."""

    estimation: Estimation  # that the server runs; the changes depend on its steps
    lie: Lie
    liars: tuple[str, ...] = ()

    def request(self, questions: Mapping[str, Request]) -> dict[str, Reply]:
        replies = super().request(questions)
        for name in (name for name in self.liars if name in replies):
            reply = replies[name] = self.lie(questions[name], replies[name])
            if isinstance(reply, Adapted) and reply.sums is not None:
                state = self.states[name]
                self.states[name] = replace(state, prior=replace(state.prior, sent=reply.sums))
        return replies


def _watched(settings: Settings) -> Estimation:
    LyingSites.estimation = Estimation(settings)
    return LyingSites.estimation


def measured(
    simulation: Simulation, config: RunConfig, lie: Lie, liars: tuple[str, ...], named: set[str] | None = None
) -> dict[str, Score]:
    """What every site gets right after the last round; `named` gets the sites that were dropped or clipped."""
    sites, reports = LyingSites(simulation.clients), []
    sites.lie, sites.liars = lie, liars
    server.Estimation, plain = _watched, server.Estimation  # type: ignore[misc, assignment]
    try:
        state = simulation.server
        while not server.is_finished(config, state):
            state, report = server.run_round(config, sites, state)
            reports.append(report)
    finally:
        server.Estimation = plain  # type: ignore[misc]
    if named is not None:
        named.update(name for report in reports for name in {*report.dropped, *report.bounds.in_words()})
    return {name: score for report in reports for name, score in report.scores.items()}


def lies_in_priors(seed: int, clients: int, liars: tuple[str, ...], lies: Collection[str] = tuple(PRIORS)) -> Costs:
    """Points that the honest sites lose in the mean by each lie, and which sites were dropped or clipped.

    "absent": the liars are not in the federation at all.
    """
    demo = tomllib.loads((files("fedcopl") / "demo.toml").read_text())
    pairs = [f"clients={clients}", "method=priors", f"seed={seed}", "evaluation.everywhere=false"]
    config = RunConfig.from_mapping(override(demo, pairs), "demo")
    simulation = assemble(config, SilentReporter())
    everybody = {name: client for name, client in simulation.clients.items() if name not in liars}
    nobody = honest(measured(simulation, config, by_factor(1), ()))

    def cost(scores: Mapping[str, Score]) -> float:
        now = honest(scores)
        return statistics.mean(now.get(name, 0.0) - before for name, before in nobody.items() if name not in liars)

    costs: Costs = {"absent": (cost(measured(replace(simulation, clients=everybody), config, by_factor(1), ())), set())}
    for lie in lies:
        named: set[str] = set()
        costs[lie] = cost(measured(simulation, config, PRIORS[lie], liars, named)), named
    return costs


def measure(study: Study, kept: Path) -> None:
    """Every case that is not known yet; each is written down as soon as it is."""
    demo = tomllib.loads((files("fedcopl") / "demo.toml").read_text())
    simulation = None
    for rule, lie, many in study.cases():
        file = kept / file_of(study, rule, lie, many)
        if not file.exists():
            config = RunConfig.from_mapping(override(demo, [*SHORT, *study.settings, *RULES[rule]]), "demo")
            simulation = simulation or assemble(config, SilentReporter())
            scores = measured(simulation, config, LIES.get(lie, by_factor(1)), LIARS[:many])
            write_text(file, json.dumps(scores))
            print(rule, lie, many, f"{honest_mean(scores):.1f}", flush=True)


def file_of(study: Study, rule: str, lie: str, many: int) -> str:
    return sha256(json.dumps([SHORT, study.settings, rule, lie, many]).encode()).hexdigest()[:16] + ".json"


def honest(scores: Mapping[str, Score]) -> dict[str, float]:
    """Accuracy of those who never lie, in percent."""
    return {name: 100 * right / tested for name, (right, tested) in scores.items() if name not in LIARS and tested}


def honest_mean(scores: Mapping[str, Score]) -> float:
    return statistics.mean(honest(scores).values())


def table(study: Study, kept: Path) -> str:
    """Points that the honest sites lose to lies, in the mean, and the one that loses most."""
    known = {case: json.loads((kept / file_of(study, *case)).read_text()) for case in study.cases()}
    nobody = {rule: known[rule, "", 0] for rule in study.rules}
    rows = [["nobody lies: accuracy", *(f"{honest_mean(nobody[rule]):.1f}" for rule in study.rules)]]
    for lie, many in ((lie, many) for lie in study.lies for many in study.liars):
        cells = [lost(nobody[rule], known[rule, lie, many]) for rule in study.rules]
        rows.append([f"{lie}, {many} of 10", *cells])
    head = [[study.title, *study.rules], ["---"] * (1 + len(study.rules))]
    return "".join(f"| {' | '.join(row)} |\n" for row in [*head, *rows])


def lost(before: Mapping[str, Score], after: Mapping[str, Score]) -> str:
    had, has = honest(before), honest(after)
    each = {name: has.get(name, 0.0) - had[name] for name in had}
    worst = min(each, key=lambda name: each[name])
    return f"{statistics.mean(each.values()):+.1f} ({worst.removeprefix('client-')}: {each[worst]:+.1f})"


def into_page(tables: str) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(PAGE, f"{before}{BEGIN}\n{tables}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, default=Path("lying-sites"), help="folder of what was measured so far")
    parser.add_argument("--only", choices=STUDIES, help="measure this one alone, and write no page")
    parser.add_argument("--priors", type=int, nargs="+", metavar="SEED", help="print what lies in the priors cost")
    arguments = parser.parse_args()
    if arguments.priors:
        for seed in arguments.priors:
            for clients, liars in ((5, LIARS[:1]), (10, LIARS)):
                for lie, (points, named) in lies_in_priors(seed, clients, liars).items():
                    print(f"{seed}, {len(liars)} of {clients}, {lie}: {points:+.1f}, named {sorted(named)}", flush=True)
        return
    arguments.kept.mkdir(parents=True, exist_ok=True)
    for study in [STUDIES[arguments.only]] if arguments.only else STUDIES.values():
        measure(study, arguments.kept)
    if not arguments.only:
        into_page("\n".join(table(study, arguments.kept) for study in STUDIES.values()))


if __name__ == "__main__":
    main()
