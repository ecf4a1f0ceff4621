"""Write experiments/photographs.md from the finished runs of `photographs.py` and experiments/label-rules.md."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

Run = Mapping[str, Any]
Measure = Callable[[Run], float | None]

MIN_DIFFERENCE = 1.0  # points; one point is four of 400 test images
RECIPES = {"neutral": "neutral initialisation", "published": "as published"}
METHODS = {
    "promptfl": "PromptFL",
    "pfedprompt": "pFedPrompt",
    "fedotp": "FedOTP",
    "pfedmoap": "pFedMoAP",
    "fedvpt": "FedVPT",
    "local": "local, both prompts",
}
LABELERS = {"fpl": "FPL", "cpl": "CPL", "copl": "CoPL"}
BASELINES = ("promptfl", "pfedprompt", "fedotp")  # of the paper's Table 1 that have runs here
FEDCOPL = "fedcopl copl neutral"
STEPS = {
    "zeroshot": "zero-shot",
    "priors": "priors, no training",
    "fedcopl copl published": "FedCoPL as published",
    FEDCOPL: "+ neutral initialisation and its steps",
    "fedcopl copl holdout": "+ hold-out check",
    "fedcopl copl default": "+ priors: the default",
}
TABLE5 = {
    "table5 -,-,-": "- | - | -",
    "table5 -,-,A": "- | - | ✓",
    "table5 -,E,A": "- | ✓ | ✓",
    "table5 C,-,A": "✓ | - | ✓",
    FEDCOPL: "✓ | ✓ | ✓",
}
TABLE6 = {
    "table6 none": "- | -",
    "table6 both": "✓ | ✓",
    "table6 text": "✓ | -",
    FEDCOPL: "- | ✓",
}
HEAD = """# Study: FedCoPL on photographs

For researchers: which of the paper's claims hold on photographs with a small real vision transformer.

Made by `tools/photographs.py` from {runs} runs, {seeds}, of code {code}; every number on this page is generated. The
images are from CIFAR-10. The model is photo-clip, a stand-in for CLIP: its image encoder is DINOv2 ViT-S/14, its text
encoder knows few words (`tools/make_photo_clip.py` makes such a model). It is far weaker than OpenAI's CLIP: **these
numbers show directions on a real ViT, not what the paper's tables would be.**

## Settings

Fixed before the first run and not changed afterwards: {train} training and {test} test images per class, sampled for
each seed, and

```
{common}
```

The subset is a hundredth of the data set, so batches are smaller than the paper's 64. FPL and CPL label up to 16 images
of a class at each client, which here are nearly all; CoPL selects about half. The paper does not say how many FPL and
CPL label; 16 is their authors' number, [applied literally](label-rules.md). The rest is
[`--as-published`](../docs/as-published.md) or the default:

- *as published*: random initial prompts, plain steps of 0.1, no hold-out check, no priors.
- *neutral initialisation*: initial prompts that do not change predictions, with the default steps
  ([training](../docs/priors.md)); no hold-out check, no priors. For a method without prompts in the encoder only the
  steps differ.

Accuracy is the mean over clients on their own test images, in %, with the number of seeds in brackets. Seeds differ in
images, split and order. One point of one seed is four test images.
"""


def page(runs: Sequence[Run], common: Sequence[str], each: tuple[int, int], label_rules: str) -> str:
    """Return the page; `each` is the number of training and test images per class, `label_rules` label-rules.md."""
    seeds = sorted({run["seed"] for run in runs})
    head = HEAD.format(
        runs=len(runs),
        code=", ".join(sorted({run["code"] for run in runs})),
        seeds=f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else "one seed",
        train=each[0],
        test=each[1],
        common="\n".join(common),
    )
    by_row = Runs(runs)
    sections = [section(by_row) for section in (_steps, _methods, _table5, _table6, _drift)]
    sections.append(_verdicts(by_row, label_rules))
    return "\n".join([head, *("\n".join(section) + "\n" for section in sections)])


class Runs:
    """Finished runs by row and seed."""

    def __init__(self, runs: Iterable[Run]):
        self._runs: dict[str, dict[int, Run]] = {}
        for run in runs:
            self._runs.setdefault(run["row"], {})[run["seed"]] = run

    def values(self, row: str, measure: Measure) -> dict[int, float]:
        """Return a measure of a row by seed, without the seeds for which it is None."""
        values = {seed: measure(run) for seed, run in sorted(self._runs.get(row, {}).items())}
        return {seed: value for seed, value in values.items() if value is not None}

    def cell(self, row: str, measure: Measure, form: str = "{:.1f}") -> str:
        values = self.values(row, measure)
        return f"{form.format(mean(values.values()))} ({len(values)})" if values else "no run"


def final(run: Run) -> float:
    return 100 * run["final"]


def gain(run: Run) -> float:
    return 100 * (run["final"] - run["zero_shot"])


def label_accuracy(refresh: int) -> Measure:
    """Return the pseudo-label accuracy at a refresh, in %."""

    def measure(run: Run) -> float | None:
        accuracies = run["label_accuracy"]
        return 100 * accuracies[refresh] if accuracies and accuracies[refresh] is not None else None

    return measure


first_labels, last_labels = label_accuracy(0), label_accuracy(-1)


def drift_of(array: str, kind: str) -> Measure:
    """Return the mean drift of an array over the rounds; None if it was not trained."""

    def measure(run: Run) -> float | None:
        values = [record[array][kind] for record in run["drift"] if record.get(array, {}).get(kind) is not None]
        return mean(values) if values else None

    return measure


def _table(heads: str, lines: Iterable[str]) -> list[str]:
    return [f"| {heads} |", "|" + "---|" * (heads.count("|") + 1), *(f"| {line} |" for line in lines)]


def _steps(runs: Runs) -> Iterator[str]:
    yield "## FedCoPL, step by step\n"
    yield from _table(
        "| accuracy | over zero-shot | seed by seed | labels right, first | last | rolled back | not trained",
        (" | ".join([title, *_step_cells(runs, row)]) for row, title in STEPS.items()),
    )
    yield "\nLabels are those of the selected images. Rolled back by the hold-out check, or not trained because too few"
    yield "labels are likely to be right: of 20 trainings (five clients, four rounds)."


def _step_cells(runs: Runs, row: str) -> list[str]:
    seed_by_seed = ", ".join(f"{value:.1f}" for value in runs.values(row, final).values())
    cells = [runs.cell(row, final), runs.cell(row, gain, "{:+.1f}"), seed_by_seed]
    if not row.startswith("fedcopl"):  # not trained
        return [*cells, "", "", "", ""]
    counts = [runs.cell(row, lambda run, key=key: run[key]) for key in ("rolled_back", "low_confidence")]
    return [*cells, runs.cell(row, first_labels), runs.cell(row, last_labels), *counts]


def _methods(runs: Runs) -> Iterator[str]:
    yield "## Methods and labels\n"
    yield "No hold-out check and no priors in any row. The paper calls FedOTP FedOPT.\n"
    heads = "method | " + " | ".join(f"{label}, {recipe}" for recipe in RECIPES.values() for label in LABELERS.values())
    methods = {"fedcopl": "FedCoPL"} | METHODS
    yield from _table(heads, (_method_line(runs, method, title) for method, title in methods.items()))


def _method_line(runs: Runs, method: str, title: str) -> str:
    names = [f"{method} {labeler} {recipe}" for recipe in RECIPES for labeler in LABELERS]
    without_run = ("fpl", "cpl") if method == "fedcopl" else ()
    return " | ".join([title, *("" if name.split()[1] in without_run else runs.cell(name, final) for name in names)])


def _table5(runs: Runs) -> Iterator[str]:
    yield "## Filters and global allocation (the paper's Table 5)\n"
    yield "From the neutral initialisation. Without any of the three each client trains on all its images.\n"
    yield from _table(
        "confidence | entropy | global allocation | accuracy | first selected images | labels right, first | last",
        (
            " | ".join(
                [
                    title,
                    runs.cell(row, final),
                    runs.cell(row, lambda run: run["selected"][0], "{:.0f}"),
                    runs.cell(row, first_labels),
                    runs.cell(row, last_labels),
                ]
            )
            for row, title in TABLE5.items()
        ),
    )


def _table6(runs: Runs) -> Iterator[str]:
    yield "## Aggregated prompts (the paper's Table 6)\n"
    yield "From the neutral initialisation.\n"
    yield from _table(
        "text prompts | visual prompts | accuracy",
        (f"{title} | {runs.cell(row, final)}" for row, title in TABLE6.items()),
    )


def _drift(runs: Runs) -> Iterator[str]:
    yield "## Drift of the clients (the paper's figure)\n"
    yield "Mean over the rounds, while both prompts are averaged, from the neutral initialisation.\n"
    lines = (
        " | ".join([f"{array} prompts", *(runs.cell("table6 both", drift_of(array, kind), "{:.2f}") for kind in KINDS)])
        for array in ("text", "visual")
    )
    yield from _table("| drift diversity | cosine distance", lines)


KINDS = ("diversity", "cosine")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: one number is higher than another."""

    words: str
    higher: tuple[str, Measure]  # row and measure
    lower: tuple[str, Measure]
    min_difference: float = MIN_DIFFERENCE
    unit: str = " points"


def _claims() -> Iterator[tuple[str, list[Claim]]]:
    for recipe, words in RECIPES.items():
        ours = f"fedcopl copl {recipe}", final
        claims = [Claim("is above zero-shot", (f"fedcopl copl {recipe}", gain), ("", lambda _: 0.0))]
        claims += [
            Claim(f"is above {METHODS[method]} with {LABELERS[labeler]}", ours, (f"{method} {labeler} {recipe}", final))
            for method in BASELINES
            for labeler in ("fpl", "cpl")
        ]
        yield f"Table 1, {words}: FedCoPL", claims
    for recipe, words in RECIPES.items():
        yield (
            f"Table 3, {words}: CoPL's labels are better than FPL's for",
            [
                Claim(METHODS[method], (f"{method} copl {recipe}", final), (f"{method} fpl {recipe}", final))
                for method in BASELINES
            ],
        )
    yield "Table 5: the whole is better than", list(_against(TABLE5, ABLATED5))
    yield "Table 6: averaging the visual prompts alone is better than", list(_against(TABLE6, ABLATED6))
    yield (
        "Drift: text prompts drift further than visual ones, by",
        [
            Claim(words, ("table6 both", drift_of("text", kind)), ("table6 both", drift_of("visual", kind)), 0.0, "")
            for kind, words in (("diversity", "drift diversity"), ("cosine", "cosine distance"))
        ],
    )
    yield (
        "Table 9: at first, CoPL's labels are right more often than",
        [
            Claim(LABELERS[labeler], (FEDCOPL, first_labels), (f"promptfl {labeler} neutral", first_labels))
            for labeler in ("fpl", "cpl")
        ],
    )
    yield (
        "Figure of allocation: in the end, labels are right more often than",
        [Claim("with no filter and no allocation", (FEDCOPL, last_labels), ("table5 -,-,-", last_labels))],
    )


VERDICT_RULE = """Decided seed by seed: a claim *holds* when the difference is at least {minimum:g} point
in the mean and has the same sign at every seed; *the opposite* holds likewise; anything else is *not decided*
(of drift the sign alone counts). A verdict of one seed or two is weak.
"""
LITERAL_RULES = """**Every verdict on Tables 1, 3 and 9 that names FPL or CPL is against their literal rules**:
each client labels up to 16 images of *each* class, also of classes that it does not hold. The variant
that `fedcopl reproduce` uses labels only the more confident half of a client's images; it was not run here.
Its first labels are far better, on such photographs with this model and ten clients: FPL {fpl} % instead of
{literal_fpl} %, CPL {cpl} % (sets that contain the truth) instead of {literal_cpl} %, CoPL {copl} %. So with the
literal rules CoPL leads by {literal_fpl_lead} and {literal_cpl_lead} points in Table 9, and with the other rule by
{fpl_lead} and {cpl_lead}: [how FPL and CPL are applied](label-rules.md).
"""
LABEL_RULES_ROW = "photo-clip, CIFAR-10, dirichlet-0.1"
ABLATED5 = ("none of the three", "allocation alone", "allocation and entropy", "allocation and confidence")
ABLATED6 = ("nothing", "both", "the text prompts")


def _against(table: Mapping[str, str], words: Sequence[str]) -> Iterator[Claim]:
    for row, name in zip((row for row in table if row != FEDCOPL), words, strict=True):
        yield Claim(name, (FEDCOPL, final), (row, final))


def _verdicts(runs: Runs, label_rules: str) -> Iterator[str]:
    yield "## Which of the paper's claims hold here\n"
    yield VERDICT_RULE.format(minimum=MIN_DIFFERENCE)
    yield comparison_of_label_rules(label_rules)
    lines = (
        f"{topic} {claim.words} | {' | '.join(verdict(runs, claim))}" for topic, claims in _claims() for claim in claims
    )
    yield from _table("claim | verdict | difference | seeds", lines)


def comparison_of_label_rules(label_rules: str) -> str:
    """Return a paragraph on the literal and the chosen rules, with the numbers of experiments/label-rules.md."""
    row = next(line for line in label_rules.splitlines() if line.startswith(f"| {LABEL_RULES_ROW} |"))
    literal_fpl, literal_cpl, fpl, cpl, copl = map(float, row.strip("| ").split("|")[2:])
    return LITERAL_RULES.format(
        literal_fpl=literal_fpl,
        literal_cpl=literal_cpl,
        fpl=fpl,
        cpl=cpl,
        copl=copl,
        literal_fpl_lead=f"{copl - literal_fpl:.1f}",
        literal_cpl_lead=f"{copl - literal_cpl:.1f}",
        fpl_lead=f"{copl - fpl:.1f}",
        cpl_lead=f"{copl - cpl:.1f}",
    )


def verdict(runs: Runs, claim: Claim) -> tuple[str, str, str]:
    """Return the verdict, the mean difference, and the number of seeds."""
    differences = _differences(runs, claim)
    if not differences:
        return "no run", "", "0"
    average = mean(differences)
    words = "not decided"
    if abs(average) >= claim.min_difference and all(value * average > 0 for value in differences):
        words = "**holds**" if average > 0 else "**the opposite**"
    form = "{:+.1f}" if claim.unit else "{:+.2f}"
    return words, form.format(average) + claim.unit, str(len(differences))


def _differences(runs: Runs, claim: Claim) -> list[float]:
    """Return the differences for the seeds that both rows have."""
    higher = runs.values(*claim.higher)
    lower = runs.values(*claim.lower) if claim.lower[0] else dict.fromkeys(higher, 0.0)
    return [higher[seed] - lower[seed] for seed in higher if seed in lower]
