"""Measure the accuracy that honest clients lose to Byzantine ones on the demo, by attack and aggregation rule.

python tools/byzantine_clients.py                     write experiments/byzantine-clients.md
python tools/byzantine_clients.py --priors 21 22 23    print the cost of attacks on the sums for the priors
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
from fedcopl.priors.estimation import Estimation, PriorSettings
from fedcopl.rng import stream
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation.assemble import Simulation, assemble
from fedcopl.simulation.simulate import LocalTransport

PAGE = Path(__file__).resolve().parents[1] / "experiments" / "byzantine-clients.md"
BEGIN, END = "<!-- made by tools/byzantine_clients.py -->\n", "<!-- end -->\n"
SHORT_RUN = ("clients=10", "rounds=2", "epochs=2", "evaluation.every=2", "evaluation.everywhere=false")
NO_DEFENCES = ("logit_bias=false", "label_shift=false", "prototypes=false", "holdout=0")
RULES = {
    "mean, not bounded": ("bounded=false",),
    "mean, bounded": (),
    "trimmed": ("robust=trimmed",),
    "median": ("robust=median",),
    "krum": ("robust=krum",),
}
BYZANTINE = ("client-3", "client-7")
Attack = Callable[[Request, Reply], Reply]
Costs = dict[str, tuple[float, set[str]]]
"""Attack -> points of accuracy lost, and the clients that were dropped or clipped."""


def replace_update(request: Request, reply: Reply, move: Callable[[Shared, Shared], Shared]) -> Reply:
    """Replace the update of a reply, and omit its hold-out check."""
    if not isinstance(request, Train) or not isinstance(reply, Trained):
        return reply
    return replace(reply, shared=move(request.shared, reply.shared), examples=max(reply.examples, 1), checks=())


def scale_update(factor: float) -> Attack:
    """Return a scaling attack, or for a negative factor sign flipping."""

    def move(sent: Shared, trained: Shared) -> Shared:
        return {name: (sent[name] + np.float32(factor) * (value - sent[name])) for name, value in trained.items()}

    return lambda request, reply: replace_update(request, reply, move)


def random_prompts(request: Request, reply: Reply) -> Reply:
    """Gaussian attack: replace the prompts by standard normal numbers."""
    random = stream(1, "lies", request.round)

    def move(sent: Shared, trained: Shared) -> Shared:
        return {name: random.normal(size=value.shape).astype(np.float32) for name, value in trained.items()}

    return replace_update(request, reply, move)


def inflate_weight(request: Request, reply: Reply) -> Reply:
    """Multiply all reported numbers of images by 1,000, and negate the update."""
    match reply:
        case Adapted(sums=sums) if sums is not None:
            return Adapted(sums * 1000)
        case Estimated(counts=counts) if counts is not None:
            return Estimated(counts * 1000)
        case Selected(images=images, examples=examples) if images is not None and examples is not None:
            return replace(reply, images=1000 * images, examples=1000 * examples)
        case Trained(examples=examples):
            return scale_update(-1)(request, replace(reply, examples=1000 * examples))
    return reply


def flip_labels(request: Request, reply: Reply) -> Reply:
    """Send the sums of each class as those of the next, in all steps."""

    def next_class(kind: str, part: FloatArray, classes: int) -> FloatArray:
        if kind == "moments":
            return np.concatenate([part[:1], np.roll(part[1 : 1 + classes], 1), part[1 + classes :]])
        return np.roll(part, 1, AXES[kind]) if kind in AXES else part

    return _change_statistics(request, reply, next_class)


def collapse_to_one_class(request: Request, reply: Reply) -> Reply:
    """Assign all images to the first class, in all steps and under every logit bias."""

    def first_class(kind: str, part: FloatArray, classes: int) -> FloatArray:
        if kind == "moments":
            zero_shot = np.eye(1, classes)[0] * part[1 : 1 + classes].sum()
            return np.concatenate([part[:1], zero_shot, part[1 + classes :]])
        if kind not in AXES:
            return part
        only = np.zeros_like(part)
        np.moveaxis(only, AXES[kind], 0)[0] = part.sum(axis=AXES[kind])
        return only

    return _change_statistics(request, reply, first_class)


def false_evidence(request: Request, reply: Reply) -> Reply:
    """Report an evidence of 2,000 nats for the common class prior, and of -2,000 nats for all others."""

    def one_strength(kind: str, part: FloatArray, classes: int) -> FloatArray:
        if kind not in ("evidence", "agreement"):
            return part
        claimed = np.full_like(part, -2000.0)  # 30 to 100 nats per image on the demo: more than images have
        claimed[..., 0] = 2000.0
        return claimed

    return _change_statistics(request, reply, one_strength)


AXES = {"predicted": 1, "class_sums": 1, "view_sums": 2}  # of the classes


def _change_statistics(request: Request, reply: Reply, change: Callable[[str, FloatArray, int], FloatArray]) -> Reply:
    if not isinstance(request, Adapt) or not isinstance(reply, Adapted) or reply.sums is None:
        return reply
    settings, parts, start = AttackedTransport.estimation.settings, [], 0
    for statistic in AttackedTransport.estimation.steps[request.step]:
        shape = statistic.shape(settings.classes, settings.width)
        part = reply.sums[start : start + math.prod(shape)].reshape(shape)
        start += part.size
        parts.append(change(statistic.kind, part, settings.classes).ravel())
    return Adapted(np.concatenate(parts))


UPDATES: Mapping[str, Attack] = {
    "random prompts": random_prompts,
    "scaling (× 100)": scale_update(100),
    "sign flipping": scale_update(-1),
    "weight × 1000, sign flipping": inflate_weight,
}
PRIORS: Mapping[str, Attack] = {
    "label flipping": flip_labels,
    "all images in one class": collapse_to_one_class,
    "false evidence": false_evidence,
    "weight × 1000": inflate_weight,
}
ATTACKS = UPDATES | PRIORS


@dataclass(frozen=True)
class Study:
    """One table: attacks in rows, aggregation rules in columns."""

    title: str
    settings: tuple[str, ...]
    rules: tuple[str, ...]
    attacks: tuple[str, ...]
    byzantine: tuple[int, ...]

    def cases(self) -> list[tuple[str, str, int]]:
        attacks = [(attack, count) for attack in self.attacks for count in self.byzantine]
        return [(rule, attack, count) for attack, count in [("", 0), *attacks] for rule in self.rules]


STUDIES = {
    "updates": Study("no priors, no hold-out checks", NO_DEFENCES, tuple(RULES), tuple(UPDATES), (1, 2)),
    "default": Study(
        "priors and hold-out checks on, as by default",
        (),
        ("mean, not bounded", "mean, bounded"),
        ("scaling (× 100)", "weight × 1000, sign flipping", "label flipping", "all images in one class"),
        (2,),
    ),
}


class AttackedTransport(LocalTransport):
    """A local transport in which the Byzantine clients change their replies, and store the changed ones."""

    estimation: Estimation  # of the server; attacks on the priors depend on its steps
    attack: Attack
    byzantine: tuple[str, ...] = ()

    def request(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        replies = super().request(requests)
        for name in (name for name in self.byzantine if name in replies):
            reply = replies[name] = self.attack(requests[name], replies[name])
            if isinstance(reply, Adapted) and reply.sums is not None:
                state = self.states[name]
                self.states[name] = replace(state, prior=replace(state.prior, sent=reply.sums))
        return replies


def _shared_estimation(settings: PriorSettings) -> Estimation:
    AttackedTransport.estimation = Estimation(settings)
    return AttackedTransport.estimation


def scores_under_attack(
    simulation: Simulation, config: RunConfig, attack: Attack, byzantine: tuple[str, ...], named: set[str] | None = None
) -> dict[str, Score]:
    """Return each client's score after the last round; add the names of dropped or clipped clients to `named`."""
    sites, reports = AttackedTransport(simulation.clients), []
    sites.attack, sites.byzantine = attack, byzantine
    server.Estimation, plain = _shared_estimation, server.Estimation  # type: ignore[misc, assignment]
    try:
        state = simulation.server
        while not server.is_finished(config, state):
            state, report = server.run_round(config, sites, state)
            reports.append(report)
    finally:
        server.Estimation = plain  # type: ignore[misc]
    if named is not None:
        named.update(name for report in reports for name in {*report.dropped, *report.bounds.summary()})
    return {name: score for report in reports for name, score in report.scores.items()}


def prior_attack_costs(
    seed: int, clients: int, byzantine: tuple[str, ...], attacks: Collection[str] = tuple(PRIORS)
) -> Costs:
    """Return the points that honest clients lose on average by each attack, and which clients were dropped or clipped.

    "absent": the Byzantine clients are not in the federation at all.
    """
    demo = tomllib.loads((files("fedcopl") / "demo.toml").read_text())
    pairs = [f"clients={clients}", "method=priors", f"seed={seed}", "evaluation.everywhere=false"]
    config = RunConfig.from_mapping(override(demo, pairs), "demo")
    simulation = assemble(config, ProgressReporter())
    honest_clients = {name: client for name, client in simulation.clients.items() if name not in byzantine}
    baseline = honest_accuracy(scores_under_attack(simulation, config, scale_update(1), ()))

    def cost(scores: Mapping[str, Score]) -> float:
        accuracy = honest_accuracy(scores)
        return statistics.mean(accuracy.get(name, 0.0) - baseline[name] for name in baseline if name not in byzantine)

    without = replace(simulation, clients=honest_clients)
    costs: Costs = {"absent": (cost(scores_under_attack(without, config, scale_update(1), ())), set())}
    for attack in attacks:
        named: set[str] = set()
        costs[attack] = cost(scores_under_attack(simulation, config, PRIORS[attack], byzantine, named)), named
    return costs


def measure(study: Study, folder: Path) -> None:
    """Run every case of a study that is not stored in the folder yet, and store it."""
    demo = tomllib.loads((files("fedcopl") / "demo.toml").read_text())
    simulation = None
    for rule, attack, count in study.cases():
        file = folder / result_file(study, rule, attack, count)
        if not file.exists():
            config = RunConfig.from_mapping(override(demo, [*SHORT_RUN, *study.settings, *RULES[rule]]), "demo")
            simulation = simulation or assemble(config, ProgressReporter())
            scores = scores_under_attack(simulation, config, ATTACKS.get(attack, scale_update(1)), BYZANTINE[:count])
            write_text(file, json.dumps(scores))
            print(rule, attack, count, f"{mean_honest_accuracy(scores):.1f}", flush=True)


def result_file(study: Study, rule: str, attack: str, count: int) -> str:
    return sha256(json.dumps([SHORT_RUN, study.settings, rule, attack, count]).encode()).hexdigest()[:16] + ".json"


def honest_accuracy(scores: Mapping[str, Score]) -> dict[str, float]:
    """Return the accuracy of the clients that never attack, in percent."""
    return {name: 100 * correct / total for name, (correct, total) in scores.items() if name not in BYZANTINE and total}


def mean_honest_accuracy(scores: Mapping[str, Score]) -> float:
    return statistics.mean(honest_accuracy(scores).values())


def table(study: Study, folder: Path) -> str:
    """Return a Markdown table of the points that honest clients lose on average, and of the client that loses most."""
    scores = {case: json.loads((folder / result_file(study, *case)).read_text()) for case in study.cases()}
    baseline = {rule: scores[rule, "", 0] for rule in study.rules}
    rows = [["no attack: accuracy", *(f"{mean_honest_accuracy(baseline[rule]):.1f}" for rule in study.rules)]]
    for attack, count in ((attack, count) for attack in study.attacks for count in study.byzantine):
        cells = [points_lost(baseline[rule], scores[rule, attack, count]) for rule in study.rules]
        rows.append([f"{attack}, {count} of 10", *cells])
    head = [[study.title, *study.rules], ["---"] * (1 + len(study.rules))]
    return "".join(f"| {' | '.join(row)} |\n" for row in [*head, *rows])


def points_lost(before: Mapping[str, Score], after: Mapping[str, Score]) -> str:
    baseline, attacked = honest_accuracy(before), honest_accuracy(after)
    change = {name: attacked.get(name, 0.0) - baseline[name] for name in baseline}
    worst = min(change, key=lambda name: change[name])
    return f"{statistics.mean(change.values()):+.1f} ({worst.removeprefix('client-')}: {change[worst]:+.1f})"


def write_page(tables: str) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(PAGE, f"{before}{BEGIN}\n{tables}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("byzantine-clients"), help="folder of stored runs")
    parser.add_argument("--only", choices=STUDIES, help="run one study only, and write no page")
    parser.add_argument(
        "--priors", type=int, nargs="+", metavar="SEED", help="print the cost of attacks on the sums for the priors"
    )
    arguments = parser.parse_args()
    if arguments.priors:
        for seed in arguments.priors:
            for clients, byzantine in ((5, BYZANTINE[:1]), (10, BYZANTINE)):
                for attack, (points, named) in prior_attack_costs(seed, clients, byzantine).items():
                    case = f"{seed}, {len(byzantine)} of {clients}, {attack}"
                    print(f"{case}: {points:+.1f}, named {sorted(named)}", flush=True)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for study in [STUDIES[arguments.only]] if arguments.only else STUDIES.values():
        measure(study, arguments.folder)
    if not arguments.only:
        write_page("\n".join(table(study, arguments.folder) for study in STUDIES.values()))


if __name__ == "__main__":
    main()
