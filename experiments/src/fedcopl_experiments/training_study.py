"""The study of training after the priors: can training without labels improve the calibrated classifier?

    python -m fedcopl_experiments.training_study heads OUT.json [--npz FILE ...] [--loader FILE.py] [--seeds 1,2]
    python -m fedcopl_experiments.training_study prompts OUT.json [--set KEY=VALUE ...] [--seeds 1,2]
    python -m fedcopl_experiments.training_study page HEADS.json PROMPTS.json PAGE

`heads` trains a linear classifier on frozen features of all clients together, an upper bound of federated averaging.
`prompts` trains visual and text prompts with FedCoPL on images, then estimates the priors again on the features of the
trained image encoder. Labels are used to split the images and to measure accuracy.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedcopl.config import RunConfig, override
from fedcopl.files import write_text
from fedcopl.priors.posterior import PosteriorModel, log_softmax

from .priors_study import CLIENTS, TEN_CLIENTS, StudyClient, find_sets, fit, split_clients, split_words

Floats = NDArray[np.float64]
Accuracies = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]  # set -> split -> column -> value of each seed
HEADS = ("zero-shot", "priors", "soft", "sharpened", "confident half", "soft, from scratch")
SPLITS = ("0.1", "1", "iid")
RIDGE = 1e-4  # squared norm of the head, per image; 1e-3 gave the same order
FEDCOPL = ("rounds=3", "data.clients=5", "train.epochs=2", "train.patience=0", "evaluation.everywhere=false")
VARIANTS: Mapping[str, Sequence[str]] = {
    "CoPL": (),
    "soft": ("labeler=soft",),
    "soft, sharpened": ("labeler=soft", "labeler_options.temperature=0.5"),
}
PROMPTS = ("zero-shot", "priors", "trained", "priors on trained features")
START, END = "<!-- made by fedcopl_experiments.training_study -->", "<!-- end of the study of training -->"


def train_head(features: Floats, offset: Floats, targets: Floats, weights: Floats) -> Floats:
    """Return the (d + 1, C) head that minimises the weighted cross-entropy of softmax(offset + [f, 1] W)."""
    inputs, shape = np.c_[features, np.ones(len(features))], (features.shape[1] + 1, targets.shape[1])

    def loss(flat: Floats) -> tuple[float, Floats]:
        head = flat.reshape(shape)
        log_probs = log_softmax(offset + inputs @ head)
        value = -(weights[:, None] * targets * log_probs).sum() / weights.sum() + RIDGE / 2 * (head**2).sum()
        gradient = inputs.T @ (weights[:, None] * (np.exp(log_probs) - targets)) / weights.sum() + RIDGE * head
        return float(value), gradient.ravel()

    minimum = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 40})
    head: Floats = minimum.x.reshape(shape)
    return head


def measure_heads(data: Mapping[str, NDArray[Any]], split: str, seed: int, clients: int) -> dict[str, float]:
    """Return the macro accuracy in % of zero-shot, of the priors and of every head trained on their posteriors."""
    parts = split_clients(data, split, seed, clients)
    model = fit(parts, np.asarray(data["text"], np.float64)).outcome
    assert model is not None
    mean = np.concatenate([part.features for part in parts]).mean(axis=0)
    train_scores, test_scores, client_posteriors = [], [], []
    for part in parts:
        scores = part.scores.with_prototypes(model.prototypes, part.read_features)
        prior = np.log(scores.class_prior(model))
        train_scores.append((model.scores(part.log_probs, scores.own_distances(model.prototypes)) + prior, prior))
        distances = 0.0 if model.prototypes is None else model.prototypes.distances(part.test)
        test_scores.append((model.scores(part.test_log_probs, distances) + prior, prior))
        client_posteriors.append(np.exp(log_softmax(train_scores[-1][0])))
    posteriors, features = np.concatenate(client_posteriors), np.concatenate([part.features for part in parts]) - mean
    adjusted = np.concatenate([scores for scores, _ in train_scores])
    prior_only = np.concatenate([np.broadcast_to(prior, scores.shape) for scores, prior in train_scores])
    confidence, classes = posteriors.max(axis=1), np.eye(posteriors.shape[1])
    sharpened = posteriors**2 / (posteriors**2).sum(axis=1, keepdims=True)
    all_images, half = np.ones(len(posteriors)), (confidence >= np.median(confidence)).astype(np.float64)
    recipes = {
        "soft": (adjusted, posteriors, all_images),
        "sharpened": (adjusted, sharpened, all_images),
        "confident half": (adjusted, classes[posteriors.argmax(axis=1)], half),
        "soft, from scratch": (prior_only, posteriors, all_images),
    }
    row = {"zero-shot": np.mean([part.accuracy(None) for part in parts])}
    row["priors"] = np.mean([part.accuracy(model) for part in parts])
    for name, (offset, targets, weights) in recipes.items():
        head = train_head(features, offset, targets, weights)
        accuracies = []
        for part, (start, prior) in zip(parts, test_scores, strict=True):
            start = np.broadcast_to(prior, start.shape) if "scratch" in name else start
            predicted = (start + np.c_[part.test - mean, np.ones(len(part.test))] @ head).argmax(axis=1)
            accuracies.append((predicted == part.labels).mean())
        row[name] = np.mean(accuracies)
    return {name: 100 * float(value) for name, value in row.items()}


def measure_prompts(settings: Sequence[str], seed: int) -> dict[str, float]:
    """Return the macro accuracy in % of one run of FedCoPL, and of priors estimated on its trained image features."""
    from safetensors.numpy import load_file

    from fedcopl.run.progress_reporter import ProgressReporter
    from fedcopl.simulation.assemble import assemble
    from fedcopl.simulation.simulate import simulate

    config = RunConfig.from_mapping(override({}, [*FEDCOPL, *settings, f"seed={seed}"]), "study")
    with tempfile.TemporaryDirectory() as folder:
        outcome = simulate(config, Path(folder) / "run", progress=ProgressReporter())
        visual = load_file(Path(folder) / "run" / "prompts" / "server.safetensors")["visual"]
    simulation = assemble(config, ProgressReporter())
    encoder = simulation.learners[0].model.encoder
    prompt = encoder.tensor(visual)

    def encode(images: Any) -> NDArray[np.float32]:
        parts = [encoder.image_features(tokens, prompt).numpy(force=True) for tokens in images.batches()]
        return np.concatenate(parts).astype(np.float64)

    text = encoder.class_features(None).numpy(force=True).astype(np.float64)
    parts = []
    for learner, test in zip(simulation.learners, simulation.audit.evaluator.test_sets.values(), strict=True):
        data = {"train": encode(learner.images), "test": encode(test.extractor._images), "test_y": test.truth.numpy()}
        data |= {"text": text, "scale": np.array(float(encoder.clip.logit_scale))}
        parts.append(StudyClient(data, np.arange(len(data["train"])), np.arange(len(data["test"]))))
    again: PosteriorModel | None = fit(parts, text).outcome
    assert outcome.untrained is not None
    return {
        "zero-shot": 100 * float(outcome.zero_shot.macro or 0),
        "priors": 100 * float(outcome.untrained.macro or 0),
        "trained": 100 * float(outcome.final.macro or 0),
        "priors on trained features": 100 * float(np.mean([part.accuracy(again) for part in parts])),
    }


def table(results: Accuracies, columns: Sequence[str]) -> str:
    """Return a Markdown table of the means over seeds."""
    lines = [f"| images | split or labels | seeds | {' | '.join(columns)} |", "|---|---|---|" + "---:|" * len(columns)]
    for name, rows in results.items():
        for kind, row in rows.items():
            seeds = ", ".join(str(int(seed)) for seed in row["seed"])
            values = " | ".join(f"{np.mean(row[column]):.1f}" for column in columns)
            lines.append(f"| {name} | {split_words(kind) if kind in SPLITS else kind} | {seeds} | {values} |")
    return "\n".join(lines)


def _store(out: Path, name: str, kind: str, seeds: Sequence[int], rows: Sequence[Mapping[str, float]]) -> None:
    results = json.loads(out.read_text()) if out.exists() else {}
    columns = {column: [round(row[column], 2) for row in rows] for column in rows[0]}
    results.setdefault(name, {})[kind] = {"seed": list(seeds), **columns}
    write_text(out, json.dumps(results, indent=1) + "\n")
    print(name, kind, {column: round(float(np.mean(values)), 1) for column, values in columns.items()}, flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    heads, prompts, page = (commands.add_parser(name) for name in ("heads", "prompts", "page"))
    heads.add_argument("out", type=Path)
    heads.add_argument("--npz", type=Path, nargs="*", default=[])
    heads.add_argument("--loader", type=Path)
    prompts.add_argument("out", type=Path)
    prompts.add_argument("--name", default="digits, glyph-clip")
    prompts.add_argument("--set", nargs="*", default=[])
    for command in (heads, prompts):
        command.add_argument("--seeds", default="1,2")
    for name in ("heads", "prompts", "page"):
        page.add_argument(name, type=Path)
    given = parser.parse_args()
    if given.command == "page":
        tables = [
            table(json.loads(file.read_text()), columns)
            for file, columns in ((given.heads, HEADS), (given.prompts, PROMPTS))
        ]
        before, rest = given.page.read_text(encoding="utf-8").split(START)
        block = "\n\n".join(tables)
        write_text(given.page, f"{before}{START}\n{block}\n{rest[rest.index(END) :]}")
        return
    seeds = [int(seed) for seed in given.seeds.split(",")]
    if given.command == "heads":
        for name, load in find_sets(given.npz, given.loader, [0.7]):
            clients = 10 if name.split()[0] in TEN_CLIENTS else CLIENTS
            for split in SPLITS:
                rows = [measure_heads(load(seed), split, seed, clients) for seed in seeds]
                _store(given.out, name, split, seeds, rows)
        return
    for kind, settings in VARIANTS.items():
        _store(given.out, given.name, kind, seeds, [measure_prompts([*given.set, *settings], seed) for seed in seeds])


if __name__ == "__main__":
    main()
