"""The study of the priors: accuracy of each part on frozen features, over data sets, splits and seeds.

    python -m fedcopl_experiments.priors_study run OUT.json [--npz FILE ...] [--loader FILE.py] [--seeds 1,2,3]
    python -m fedcopl_experiments.priors_study page OUT.json docs/priors.md
    python -m fedcopl_experiments.priors_study ablation OUT.json [--npz FILE ...] [--loader FILE.py] [--seeds 1,2,3]
    python -m fedcopl_experiments.priors_study encode OUT.npz --source cifar10 --path DIR --backbone MODEL

A data set is an .npz file with `train`, `test` (unit image features), `train_y`, `test_y` (labels), `text` (class
embeddings) and `scale`; or a name in NAMES of a Python file whose `load(name, seed=..., bias_std=...)` returns the same
arrays. Labels are used to split the images over clients and to measure accuracy, never by the estimation.
"""

import argparse
import importlib.util
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcopl.algorithm import partition
from fedcopl.files import write_text
from fedcopl.priors import estimation as rules
from fedcopl.priors.estimation import Estimation, PriorSettings
from fedcopl.priors.posterior import PosteriorModel, log_softmax, no_priors
from fedcopl.priors.statistics import ClientScores
from fedcopl.rng import stream

Results = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]  # set -> split -> column -> value of each seed
Arrays = Mapping[str, NDArray[Any]]
SPLITS = ("0.05", "0.1", "0.5", "1", "iid", "quantity", "iid, tail 10:1", "0.1, tail 10:1")
WITHOUT_LABEL_SHIFT = {"+ label shift": "logit bias", "all": "+ prototypes"}
# even: logit bias with a given uniform class prior; known: all parts with the given true class prior over all clients
COLUMNS = ("zero-shot", "even", "logit bias", "+ label shift", "+ prototypes", "all", "known")
SHOWN = ("zero-shot", "+ label shift", "all")  # on the page
CLIENTS, TEN_CLIENTS = 5, {"dtd"}
TAIL = 10  # ratio of the numbers of images of the most common and the rarest class
LONG_TABLE = (
    "# The priors, seed by seed\n\nMacro accuracy in %; [priors](../docs/priors.md) explains the columns.\n\n{}\n"
)
# Each constant of the estimation with a value that switches its rule off
ABLATIONS = {
    "SIGNIFICANT": (math.inf, "mean logits do not count as bias"),
    "CLEAR_PRIOR": (rules.CLEAR, "one threshold for every class prior"),
    "CLEAR_GAIN": (math.inf, "the small feature scale only"),
    "FEW_IMAGES": (1e-9, "the same feature scale for few images"),
    "EVEN_SPREAD": (0.0, "the predicted shares are not shrunk"),
    "SCALES": ((1.0,), "one temperature only"),
}
ABLATION_PAGE = """# Ablation: each rule of the priors

Macro accuracy in % with one rule of [the estimation](../docs/priors.md) switched off: the mean over all sets,
splits and seeds below, and the largest loss and gain of a set and split. Made by
`fedcopl_experiments.priors_study ablation`.

{}

Sets: {}. Splits: {}. Seeds: {}.
"""
START, END = "<!-- study: made by fedcopl_experiments.priors_study -->", "<!-- end of the study -->"


class StudyClient:
    """One client's images; the estimation uses features and log-probabilities only."""

    def __init__(self, data: Arrays, train: NDArray[np.int64], test: NDArray[np.int64]):
        self.features, self.test = data["train"][train], data["test"][test]
        self.log_probs, self.test_log_probs = (
            log_softmax(float(data["scale"]) * features @ data["text"].T) for features in (self.features, self.test)
        )
        self.labels = data["test_y"][test]
        self.scores = ClientScores(self.log_probs)

    def read_features(self) -> NDArray[np.float64]:
        """Return the image features, (n, d)."""
        return self.features

    def accuracy(self, model: PosteriorModel | None) -> float:
        """Return the accuracy on the client's test images; None: zero-shot."""
        if model is None:
            return float((self.test_log_probs.argmax(axis=1) == self.labels).mean())
        scores = self.scores.with_prototypes(model.prototypes, self.read_features)
        posteriors = model.log_posteriors(self.test_log_probs, self.test, scores.class_prior(model))
        return float((posteriors.argmax(axis=1) == self.labels).mean())

    def reply(self, estimation: Estimation) -> NDArray[np.float64]:
        """Return the sums that the last step of the estimation requests."""
        sums = []
        for statistic in estimation.steps[-1]:
            part, self.scores = self.scores.compute(statistic, self.read_features)
            sums.append(part.ravel())
        return np.concatenate(sums)


def with_tail(data: Arrays, seed: int) -> dict[str, NDArray[Any]]:
    """Return the data with classes of geometrically falling size, 10:1 from the first to the last."""
    classes = len(data["text"])
    shares = TAIL ** (-stream(seed, "tail").permutation(classes) / (classes - 1))
    reduced = dict(data)
    for part in ("train", "test"):
        labels = data[f"{part}_y"]
        members = [np.flatnonzero(labels == label) for label in range(classes)]
        index = np.concatenate([m[: max(1, round(s * len(m)))] for m, s in zip(members, shares, strict=True)])
        reduced[part], reduced[f"{part}_y"] = data[part][index], labels[index]
    return reduced


def split_clients(data: Arrays, split: str, seed: int, clients: int) -> list[StudyClient]:
    """Split the images over clients; clients without training or test images are left out."""
    labels, classes = (data["train_y"], data["test_y"]), len(data["text"])
    rng, kind = stream(seed, f"split {split}"), split.split(",")[0]
    if kind == "iid":
        parts = partition.iid(*labels, classes, clients, rng)
    elif kind == "quantity":
        parts = partition.quantity(*labels, classes, clients, rng)
    else:
        parts = partition.dirichlet(*labels, classes, clients, rng, beta=float(kind))
    rows = zip(parts.train, parts.test, strict=True)
    return [StudyClient(data, train, test) for train, test in rows if len(train) and len(test)]


def fit(clients: Sequence[StudyClient], text: NDArray[np.float64], **settings: Any) -> Estimation:
    """Run the estimation with these clients."""
    for client in clients:
        client.scores = ClientScores(client.log_probs)
    estimation = Estimation(PriorSettings(*text.shape, **settings), text)
    while estimation.outcome is None:
        estimation.add(np.sum([client.reply(estimation) for client in clients], axis=0))
    return estimation


def measure(
    name: str, data: Arrays, split: str, seed: int, columns: Sequence[str] = ("even", "+ label shift", "all", "known")
) -> dict[str, float]:
    """Return the macro accuracy in % of zero-shot, of each part, of all, and of all with a known class prior."""
    data = with_tail(data, seed) if "tail" in split else data
    clients = split_clients(data, split, seed, 10 if name.split()[0] in TEN_CLIENTS else CLIENTS)
    text = np.asarray(data["text"], np.float64)
    counts = np.bincount(data["train_y"], minlength=len(text)) + 1e-3
    even = {"class_prior": np.full(len(text), 1 / len(text)), "label_shift": False, "prototypes": False}
    settings: dict[str, dict[str, Any]] = {
        "even": even,
        "+ label shift": {"prototypes": False},
        "all": {},
        "known": {"class_prior": counts / counts.sum()},
    }
    row = {"zero-shot": np.mean([client.accuracy(None) for client in clients])}
    for part in columns:
        model = fit(clients, text, **settings[part]).outcome or no_priors(len(text))
        row[part] = np.mean([client.accuracy(model) for client in clients])
        if part in WITHOUT_LABEL_SHIFT:  # same estimation, but clients use the common class prior
            common = replace(model, strength=math.inf)
            row[WITHOUT_LABEL_SHIFT[part]] = np.mean([client.accuracy(common) for client in clients])
    return {part: 100 * float(value) for part, value in row.items()}


def run(out: Path, sets: Mapping[str, Any], splits: Sequence[str], seeds: Sequence[int]) -> None:
    """Measure the missing sets and splits, and add the accuracies of each seed to a file."""
    results: dict[str, dict[str, dict[str, list[float]]]] = json.loads(out.read_text()) if out.exists() else {}
    for name, load in sets.items():
        for split in splits:
            if split in results.get(name, {}):
                continue
            rows = [measure(name, load(seed), split, seed) for seed in seeds]
            measured = {column: [round(row[column], 2) for row in rows] for column in COLUMNS}
            results.setdefault(name, {})[split] = {"seed": list(seeds), **measured}
            write_text(out, json.dumps(results, indent=1) + "\n")
            print(name, split, {column: round(float(np.mean(measured[column])), 1) for column in COLUMNS}, flush=True)


def ablate(out: Path, sets: Mapping[str, Any], splits: Sequence[str], seeds: Sequence[int]) -> None:
    """Measure the missing sets and splits with each rule switched off, and add the accuracies to a file."""
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for name, off in {"": None, **{name: value for name, (value, _) in ABLATIONS.items()}}.items():
        constant = getattr(rules, name, None)
        if name:
            setattr(rules, name, off)
        for kind, load in sets.items():
            for split in splits:
                if split not in results.setdefault(name, {}).setdefault(kind, {}):
                    rows = [measure(kind, load(seed), split, seed, ("+ label shift", "all")) for seed in seeds]
                    columns = {column: [round(row[column], 2) for row in rows] for column in SHOWN}
                    results[name][kind][split] = {"seed": list(seeds), **columns}
                    write_text(out, json.dumps(results, indent=1) + "\n")
        if name:
            setattr(rules, name, constant)


def ablation_page(results: Mapping[str, Results]) -> str:
    """Return the page of the ablations, one row per rule."""
    cells = [(kind, split) for kind, splits in results[""].items() for split in splits]
    heads = ("without prototypes", "largest loss", "gain", "all parts", "largest loss", "gain")
    lines = [f"| rule switched off | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for name, rows in results.items():
        words = [f"`{name}`: {ABLATIONS[name][1]}" if name else "none"]
        for column in SHOWN[1:]:
            values, full = (
                np.array([np.mean(table[kind][split][column]) for kind, split in cells])
                for table in (rows, results[""])
            )
            words += [f"{values.mean():.2f}", f"{(values - full).min():.1f}", f"{(values - full).max():+.1f}"]
        lines.append(f"| {' | '.join(words)} |")
    seeds = {seed for kind, split in cells for seed in results[""][kind][split]["seed"]}
    splits = dict.fromkeys(split_words(split) for _, split in cells)
    return ABLATION_PAGE.format(
        "\n".join(lines), "; ".join(results[""]), "; ".join(splits), ", ".join(map(str, sorted(map(int, seeds))))
    )


def means(row: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean over the seeds of every column."""
    return {column: float(np.mean(row[column])) for column in COLUMNS}


def split_words(split: str) -> str:
    """Return the name of a split in tables."""
    return split if split[0] in "iq" else f"Dirichlet {split}"


def table(results: Results) -> str:
    """Return all results as a Markdown table, one row per set, split and seed."""
    lines = [f"| set | split | seed | {' | '.join(COLUMNS)} |", "|---|---|---:|" + "---:|" * len(COLUMNS)]
    for name, splits in results.items():
        for split, row in splits.items():
            for number, seed in enumerate(row["seed"]):
                values = " | ".join(f"{row[column][number]:.1f}" for column in COLUMNS)
                lines.append(f"| {name} | {split_words(split)} | {seed} | {values} |")
    return "\n".join(lines)


def summary(results: Results) -> str:
    """Return the means over seeds as a Markdown table, one row per set and one column per split."""
    splits = [split for split in SPLITS if any(split in rows for rows in results.values())]
    lines = [f"| set | {' | '.join(map(split_words, splits))} |", "|---|" + "---|" * len(splits)]
    for name, rows in results.items():
        cells = []
        for split in splits:
            mean = means(rows[split]) if split in rows else {}
            cells.append(" / ".join(f"{mean[column]:.1f}" for column in SHOWN) if mean else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: Results, out: Path) -> None:
    """Draw the gain over zero-shot without prototypes and of all parts, one row per set."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fedcopl"
    from matplotlib import pyplot

    splits = [split for split in SPLITS if any(split in row for row in results.values())]
    figure, axes = pyplot.subplots(len(results), 1, figsize=(8, 1.3 * len(results) + 0.8), sharex=True, squeeze=False)
    for axis, (name, rows) in zip(axes[:, 0], results.items(), strict=True):
        positions = [number for number, split in enumerate(splits) if split in rows]
        for shift, column, colour in ((-0.2, "+ label shift", "#9aa5b1"), (0.2, "all", "#2b6cb0")):
            of_splits = [means(rows[splits[position]]) for position in positions]
            gains = [mean[column] - mean["zero-shot"] for mean in of_splits]
            axis.bar([position + shift for position in positions], gains, 0.38, color=colour, label=column)
        axis.axhline(0, color="#333", linewidth=0.8)
        axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xticks(range(len(splits)), [split.replace(", ", ",\n") for split in splits], fontsize=8)
    axes[0, 0].legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    figure.suptitle("Points gained over zero-shot, without labels and without training", fontsize=10)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def update_page(page: str, results: Results) -> str:
    """Replace the block of the study in a page."""
    before, rest = page.split(START)
    return f"{before}{START}\n{summary(results)}\n{rest[rest.index(END) :]}"


def encode(out: Path, source: str, path: str, backbone: str, images: int) -> None:
    """Encode random images of a data set with a model, and write the arrays of the study."""
    from fedcopl.clip.device import choose_arithmetic
    from fedcopl.clip.encoder import Encoder, TokenStore
    from fedcopl.clip.frozen_clip import load_clip
    from fedcopl.config import Data
    from fedcopl.data.catalog import load_dataset

    dataset = load_dataset(Data(source=source, path=path))
    encoder = Encoder(load_clip(backbone), dataset.classes, dataset.template, choose_arithmetic("cpu", "fp32"))
    arrays: dict[str, Any] = {}
    for name, part in (("train", dataset.train), ("test", dataset.test)):
        assert part.labels is not None
        index = stream(0, f"study images {name}").permutation(len(part))[:images]
        pixels = np.stack([encoder.clip.preprocess.resize_and_crop(part.images[int(row)]) for row in index])
        store = TokenStore(encoder.clip, pixels)
        batches = [np.arange(start, min(start + 256, len(pixels))) for start in range(0, len(pixels), 256)]
        arrays[name] = np.concatenate([encoder.image_features(store[rows]).numpy(force=True) for rows in batches])
        arrays[f"{name}_y"] = part.labels[index]
    text = encoder.class_features(None).numpy(force=True)
    np.savez_compressed(out, **arrays, text=text, scale=np.array(float(encoder.clip.logit_scale)))


def find_sets(
    npz: Sequence[Path], loader: Path | None, biases: Sequence[float], zero_shot: float | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield each data set's name and a function that loads it for a seed."""
    for file in npz:
        with np.load(file) as stored:
            data = {name: stored[name] for name in stored.files}
        for part in ("train", "test"):
            data[part], data[f"{part}_y"] = data[part].astype(np.float64), data[f"{part}_y"].astype(np.int64)
        yield file.stem, lambda seed, data=data: data
    if loader is None:
        return
    module_spec = importlib.util.spec_from_file_location("study_loader", loader)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)

    def load(name: str, bias: float, seed: int) -> dict[str, NDArray[Any]]:
        data = dict(module.load(name, zero_shot=zero_shot, seed=seed, bias_std=bias))
        return data | {part: data[part].astype(np.int64) for part in ("train_y", "test_y")}

    for name in module.USUAL:
        for bias in biases:
            title = name if zero_shot is None else f"{name} at {zero_shot:g} %"
            yield f"{title} (bias {bias:g})", lambda seed, name=name, bias=bias: load(name, bias, seed)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    study, ablation, page, encoding = (commands.add_parser(name) for name in ("run", "ablation", "page", "encode"))
    for command in (study, ablation):
        command.add_argument("out", type=Path)
        command.add_argument("--npz", type=Path, nargs="*", default=[])
        command.add_argument("--loader", type=Path)
        command.add_argument("--bias", default="0.3,0.7,1.1")
        command.add_argument("--zero-shot", type=float, help="zero-shot accuracy in %% that the loader simulates")
        command.add_argument("--splits", default=";".join(SPLITS))
        command.add_argument("--seeds", default="1,2,3")
    page.add_argument("results", type=Path)
    page.add_argument("page", type=Path, nargs="?", help="without it only the long table is written")
    encoding.add_argument("out", type=Path)
    encoding.add_argument("--source", default="digits")
    encoding.add_argument("--path", default="")
    encoding.add_argument("--backbone", default="glyph-clip")
    encoding.add_argument("--images", type=int, default=6000)
    given = parser.parse_args()
    if given.command == "encode":
        encode(given.out, given.source, given.path, given.backbone, given.images)
    elif given.command == "page":
        results = json.loads(given.results.read_text())
        write_text(given.results.with_suffix(".md"), LONG_TABLE.format(table(results)))
        if given.page:
            write_text(given.page, update_page(given.page.read_text(encoding="utf-8"), results))
            draw(results, given.page.parent / "images" / "priors.svg")
    else:
        biases, seeds = map(float, given.bias.split(",")), [int(seed) for seed in given.seeds.split(",")]
        measure_all = run if given.command == "run" else ablate
        measure_all(
            given.out,
            dict(find_sets(given.npz, given.loader, [*biases], given.zero_shot)),
            given.splits.split(";"),
            seeds,
        )
    if given.command == "ablation":
        write_text(given.out.with_suffix(".md"), ablation_page(json.loads(given.out.read_text())))


if __name__ == "__main__":
    main()
