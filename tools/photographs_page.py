"""Make experiments/photographs.md from the finished runs of `photographs.py` and experiments/label-readings.md.

No number is typed in.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

Run = Mapping[str, Any]
Measure = Callable[[Run], float | None]

LEAST = 1.0  # points: less than that is four test images of 400
RECIPES = {"quiet": "neutral initialisation", "published": "as published"}
METHODS = {
    "promptfl": "PromptFL",
    "pfedprompt": "pFedPrompt",
    "fedotp": "FedOTP",
    "pfedmoap": "pFedMoAP",
    "fedvpt": "FedVPT",
    "local": "local, both prompts",
}
LABELERS = {"fpl": "FPL", "cpl": "CPL", "copl": "CoPL"}
BASELINES = ("promptfl", "pfedprompt", "fedotp")  # of the paper's Table 1 that are played here
FEDCOPL = "fedcopl copl quiet"
LADDER = {
    "zeroshot": "zero-shot",
    "priors": "priors, no training",
    "fedcopl copl published": "FedCoPL as published",
    "fedcopl copl quiet": "+ neutral initialisation and its steps",
    "fedcopl copl guard": "+ hold-out check",
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
CPL label; 16 is their authors' number, [applied literally](label-readings.md). The rest is
[`--as-published`](../docs/as-published.md) or the default:

- *as published*: random initial prompts, plain steps of 0.1, no hold-out check, no priors.
- *neutral initialisation*: initial prompts that do not change predictions, with the default steps
  ([training](../docs/priors.md)); no hold-out check, no priors. For a method without prompts in the encoder only the
  steps differ.

Accuracy is the mean over clients on their own test images, in %, with the number of seeds in brackets. Seeds differ in
images, split and order. One point of one seed is four test images.
"""


def page(runs: Sequence[Run], common: Sequence[str], each: tuple[int, int], readings: str) -> str:
    """Everything that is known so far; `readings` is the text of experiments/label-readings.md."""
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
    parts = [*(part(by_row) for part in (_ladder, _methods, _table5, _table6, _drift)), _verdicts(by_row, readings)]
    return "\n".join([head, *("\n".join(part) + "\n" for part in parts)])


class Runs:
    """The finished runs, by row and seed."""

    def __init__(self, runs: Iterable[Run]):
        self._runs: dict[str, dict[int, Run]] = {}
        for run in runs:
            self._runs.setdefault(run["row"], {})[run["seed"]] = run

    def values(self, row: str, measure: Measure) -> dict[int, float]:
        """By seed; a run that did not measure this is left out."""
        found = {seed: measure(run) for seed, run in sorted(self._runs.get(row, {}).items())}
        return {seed: value for seed, value in found.items() if value is not None}

    def cell(self, row: str, measure: Measure, form: str = "{:.1f}") -> str:
        values = self.values(row, measure)
        return f"{form.format(mean(values.values()))} ({len(values)})" if values else "not played"


def final(run: Run) -> float:
    return 100 * run["final"]


def gain(run: Run) -> float:
    return 100 * (run["final"] - run["zero_shot"])


def first_labels(run: Run) -> float | None:
    return _share(run["labels"], 0)


def last_labels(run: Run) -> float | None:
    return _share(run["labels"], -1)


def _share(labels: Sequence[float | None], which: int) -> float | None:
    return 100 * labels[which] if labels and labels[which] is not None else None


def drift_of(array: str, kind: str) -> Measure:
    """Mean over the rounds; None where this array was not trained."""

    def measured(run: Run) -> float | None:
        found = [record[array][kind] for record in run["drift"] if record.get(array, {}).get(kind) is not None]
        return mean(found) if found else None

    return measured


def _table(heads: str, lines: Iterable[str]) -> list[str]:
    return [f"| {heads} |", "|" + "---|" * (heads.count("|") + 1), *(f"| {line} |" for line in lines)]


def _ladder(runs: Runs) -> Iterator[str]:
    yield "## FedCoPL, step by step\n"
    yield from _table(
        "| accuracy | over zero-shot | seed by seed | labels right, first | last | rolled back | not trained",
        (" | ".join([title, *_ladder_cells(runs, row)]) for row, title in LADDER.items()),
    )
    yield "\nLabels are those of the selected images. Rolled back by the hold-out check, or not trained because too few"
    yield "labels are likely to be right: of 20 trainings (five clients, four rounds)."


def _ladder_cells(runs: Runs, row: str) -> list[str]:
    is_trained = row.startswith("fedcopl")
    seed_by_seed = ", ".join(f"{value:.1f}" for value in runs.values(row, final).values())
    cells = [runs.cell(row, final), runs.cell(row, gain, "{:+.1f}"), seed_by_seed]
    if not is_trained:
        return [*cells, "", "", "", ""]
    counts = [runs.cell(row, lambda run, key=key: run[key]) for key in ("undone", "doubtful")]
    return [*cells, runs.cell(row, first_labels), runs.cell(row, last_labels), *counts]


def _methods(runs: Runs) -> Iterator[str]:
    yield "## Methods and labels\n"
    yield "No hold-out check and no priors in any row. The paper calls FedOTP FedOPT.\n"
    heads = "method | " + " | ".join(f"{label}, {words}" for words in RECIPES.values() for label in LABELERS.values())
    whole = {"fedcopl": "FedCoPL"} | METHODS
    yield from _table(heads, (_method_line(runs, method, title) for method, title in whole.items()))


def _method_line(runs: Runs, method: str, title: str) -> str:
    names = [f"{method} {labeler} {recipe}" for recipe in RECIPES for labeler in LABELERS]
    own = ("fpl", "cpl") if method == "fedcopl" else ()
    return " | ".join([title, *("" if name.split()[1] in own else runs.cell(name, final) for name in names)])


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
                    runs.cell(row, lambda run: run["chosen"][0], "{:.0f}"),
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
    """Something the paper says: one number is above another."""

    words: str
    above: tuple[str, Measure]  # row and what is measured of it
    below: tuple[str, Measure]
    least: float = LEAST
    unit: str = " points"


def _claims() -> Iterator[tuple[str, list[Claim]]]:
    for recipe, words in RECIPES.items():
        ours = f"fedcopl copl {recipe}", final
        over = [Claim("is above zero-shot", (f"fedcopl copl {recipe}", gain), ("", lambda _: 0.0))]
        over += [
            Claim(f"is above {METHODS[method]} with {LABELERS[labeler]}", ours, (f"{method} {labeler} {recipe}", final))
            for method in BASELINES
            for labeler in ("fpl", "cpl")
        ]
        yield f"Table 1, {words}: FedCoPL", over
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
            Claim(LABELERS[labeler], (FEDCOPL, first_labels), (f"promptfl {labeler} quiet", first_labels))
            for labeler in ("fpl", "cpl")
        ],
    )
    yield (
        "Figure of allocation: in the end, labels are right more often than",
        [Claim("with no filter and no allocation", (FEDCOPL, last_labels), ("table5 -,-,-", last_labels))],
    )


RULE = """Decided seed by seed: a claim *holds* when the difference is at least {least:g} point
in the mean and has the same sign at every seed; *the opposite* holds likewise; anything else is *not decided*
(of drift the sign alone counts). A verdict of one seed or two is weak.
"""
LITERAL_RULES = """**Every verdict on Tables 1, 3 and 9 that names FPL or CPL is against their literal rules**:
each client labels up to 16 images of *each* class, also of classes that it does not hold. The variant
that `fedcopl reproduce` uses labels only the more confident half of a client's images; it was not run here.
Its first labels are far better, on such photographs with this model and ten clients: FPL {fpl} % instead of
{fpl_letter} %, CPL {cpl} % (sets that contain the truth) instead of {cpl_letter} %, CoPL {copl} %. So with the
literal rules CoPL leads by {letter_lead:.1f} and {cpl_letter_lead:.1f} points in Table 9, and with the other rule by
{lead:.1f} and {cpl_lead:.1f}: [how FPL and CPL are applied](label-readings.md).
"""
READ_ROW = "photo-clip, CIFAR-10, dirichlet-0.1"
ABLATED5 = ("none of the three", "allocation alone", "allocation and entropy", "allocation and confidence")
ABLATED6 = ("nothing", "both", "the text prompts")


def _against(table: Mapping[str, str], words: Sequence[str]) -> Iterator[Claim]:
    for row, name in zip((row for row in table if row != FEDCOPL), words, strict=True):
        yield Claim(name, (FEDCOPL, final), (row, final))


def _verdicts(runs: Runs, readings: str) -> Iterator[str]:
    yield "## Which of the paper's claims hold here\n"
    yield RULE.format(least=LEAST)
    yield with_the_other_rule(readings)
    lines = (
        f"{about} {claim.words} | {' | '.join(verdict(runs, claim))}" for about, claims in _claims() for claim in claims
    )
    yield from _table("claim | verdict | difference | seeds", lines)


def with_the_other_rule(readings: str) -> str:
    """What FPL and CPL would be by the reading found, in the numbers of experiments/label-readings.md."""
    row = next(line for line in readings.splitlines() if line.startswith(f"| {READ_ROW} |"))
    fpl_letter, cpl_letter, fpl, cpl, copl = map(float, row.strip("| ").split("|")[2:])
    return LITERAL_RULES.format(
        fpl_letter=fpl_letter,
        cpl_letter=cpl_letter,
        fpl=fpl,
        cpl=cpl,
        copl=copl,
        letter_lead=copl - fpl_letter,
        cpl_letter_lead=copl - cpl_letter,
        lead=copl - fpl,
        cpl_lead=copl - cpl,
    )


def verdict(runs: Runs, claim: Claim) -> tuple[str, str, str]:
    """In words, the mean difference, and over how many seeds."""
    differences = _differences(runs, claim)
    if not differences:
        return "not played", "", "0"
    middle = mean(differences)
    is_clear = abs(middle) >= claim.least and all(value * middle > 0 for value in differences)
    words = ("**holds**" if middle > 0 else "**the opposite**") if is_clear else "not decided"
    form = "{:+.1f}" if claim.unit else "{:+.2f}"
    return words, form.format(middle) + claim.unit, str(len(differences))


def _differences(runs: Runs, claim: Claim) -> list[float]:
    """Over the seeds that both have."""
    above = runs.values(*claim.above)
    below = runs.values(*claim.below) if claim.below[0] else dict.fromkeys(above, 0.0)
    return [above[seed] - below[seed] for seed in above if seed in below]
