"""Make photo-clip: DINOv2's image tower in CLIP's layout, with a small text tower taught by a sentence model.

    .venv/bin/python tools/make_photo_clip.py --dinov2 DIR --minilm DIR --images DIR --classes FILE \\
        --phrases FILE --out DIR

`--dinov2` and `--minilm` are folders of `facebook/dinov2-small` and `sentence-transformers/all-MiniLM-L6-v2` as a hub
gives them. `--images` holds a folder of images for each class, `--classes` a line for each of them: folder, tab, name,
and after further tabs the names of what it is a kind of. `--phrases` holds nouns, one a line: the words the text tower
will know. Needs what `make test` installs.

1. Vision: DINOv2's weights; LayerScale is folded into the projections it scales, which changes no bit of the algebra.
2. Map: image space is whitened within classes and cut to the leading directions of the class means; ridge regression
   takes a sentence's embedding there. Both strengths are chosen by folds of held-out *classes*.
3. Text: a causal tower learns to give each phrase's mapped embedding, also with random vectors in front of the words,
   so that it tolerates a learned context.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, Dinov2Model

from fedcopl.clip.blocks import TowerShape
from fedcopl.clip.preprocess import ImageTransform
from fedcopl.clip.text_towers import CausalText, split_sentences
from fedcopl.clip.tokenizer import clip_tokenizer
from fedcopl.clip.vision_towers import VisionTower
from hugging_face_export import to_hugging_face

Array = NDArray[np.float64]

IMAGE, GRID = 70, 7  # pixels a side; the grid of positions of which the middle is taken
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OUTPUT, SCALE = 128, 15.0
TEXT = TowerShape(width=256, depth=4, heads=4, hidden=1024, activation="gelu")
VOCABULARY, POSITIONS = 49408, 77  # CLIP's
SENTENCE = "a photo of a {}."
TEMPLATES = (SENTENCE, "a photo of a {}", "{}", "a picture of the {}.", "this is a {}.", "a blurry photo of a {}.")
SHRINKS = (0.03, 0.1, 0.3)  # of the spread within classes, towards a ball
RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0)
FOLDS = 5


# 1. Vision


def centre_positions(positions: Tensor, grid: int, side: int) -> Tensor:
    """Class position and grid (1 + n^2, width) -> the middle side x side of the grid resized to grid x grid.

    The middle of a larger grid keeps neighbours as far apart as they were for the larger image.
    """
    of_class, of_patches = positions[:1], positions[1:]
    given, first = math.isqrt(len(of_patches)), (grid - side) // 2
    planes = of_patches.T.reshape(1, -1, given, given)
    resized = F.interpolate(planes, (grid, grid), mode="bilinear", align_corners=False)
    middle = resized[0, :, first : first + side, first : first + side]
    return torch.cat([of_class, middle.flatten(1).T])


def vision_tower(dino: Dinov2Model, positions: Tensor, mean: Tensor, project: Tensor) -> VisionTower:
    """DINOv2 as our tower; features are (class token - mean) projected by (output, width).

    A residual is lambda * (W x + b) = (lambda W) x + lambda b: LayerScale is gone, and nothing else changes.
    """
    config, given = dino.config, dino.state_dict()
    shape = TowerShape(
        width=config.hidden_size,
        depth=config.num_hidden_layers,
        heads=config.num_attention_heads,
        hidden=config.hidden_size * config.mlp_ratio,
        activation="gelu",
        epsilon=config.layer_norm_eps,
    )
    side = math.isqrt(len(positions) - 1) * config.patch_size
    tower = VisionTower(
        shape, patch=config.patch_size, image=side, output=len(project), patch_bias=True, norm_first=False
    )
    weights = {
        "class_token": given["embeddings.cls_token"].flatten(),
        "positions": positions,
        "patches.weight": given["embeddings.patch_embeddings.projection.weight"],
        "patches.bias": given["embeddings.patch_embeddings.projection.bias"],
        "norm_last.weight": given["layernorm.weight"],
        "norm_last.bias": given["layernorm.bias"] - mean,
        "project.weight": project,
    }
    for level in range(shape.depth):
        block = {name.removeprefix(f"encoder.layer.{level}."): value for name, value in given.items()}
        weights |= {f"blocks.{level}.{name}": value for name, value in folded_block(block).items()}
    tower.load_state_dict(weights)
    return tower


def folded_block(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """One block of DINOv2 under our names, LayerScale folded."""
    found = {}
    for kind in ("weight", "bias"):
        found[f"norm_attention.{kind}"] = given[f"norm1.{kind}"]
        found[f"norm_mlp.{kind}"] = given[f"norm2.{kind}"]
        found[f"query_key_value.{kind}"] = torch.cat([given[f"attention.{name}_proj.{kind}"] for name in "qkv"])
        found[f"up.{kind}"] = given[f"mlp.fc1.{kind}"]
        found[f"out.{kind}"] = _scaled(given[f"attention.o_proj.{kind}"], given["layer_scale1.lambda1"])
        found[f"down.{kind}"] = _scaled(given[f"mlp.fc2.{kind}"], given["layer_scale2.lambda1"])
    return found


def _scaled(weight: Tensor, by: Tensor) -> Tensor:
    """Each row by its factor."""
    return weight * (by[:, None] if weight.dim() > 1 else by)


# 2. The map between images and sentences


@dataclass(frozen=True)
class ImageMap:
    """Image features -> (x - mean) project^T."""

    mean: Array  # (width,)
    project: Array  # (output, width)

    def __call__(self, features: Array) -> Array:
        return (features - self.mean) @ self.project.T


@dataclass(frozen=True)
class SentenceMap:
    """Embedding of a sentence -> where images of what it names should be."""

    mean: Array
    weights: Array  # (embedding, output)
    offset: Array  # (output,)

    def __call__(self, embeddings: Array) -> Array:
        return (embeddings - self.mean) @ self.weights + self.offset


def class_means(features: Array, labels: NDArray[np.int64]) -> Array:
    return np.stack([features[labels == label].mean(axis=0) for label in np.unique(labels)])


def whitening(features: Array, labels: NDArray[np.int64], output: int, shrink: float) -> ImageMap:
    """Spread within classes made a ball, then the directions in which the class means differ most."""
    classes, place = np.unique(labels, return_inverse=True)
    means = class_means(features, labels)
    within = np.cov((features - means[place]).T, bias=True)
    ball = np.trace(within) / len(within) * np.eye(len(within))
    values, vectors = np.linalg.eigh((1 - shrink) * within + shrink * ball)
    whiten = vectors / np.sqrt(values) @ vectors.T
    mean = means.mean(axis=0)
    directions = np.linalg.svd((means - mean) @ whiten, full_matrices=False)[2][: min(output, len(classes))]
    missing = np.zeros((output - len(directions), len(within)))
    return ImageMap(mean, np.concatenate([directions @ whiten, missing]))


def ridge(embeddings: Array, targets: Array, strength: float) -> SentenceMap:
    """The W of least ||E W - T||^2 + strength ||W||^2, both centred."""
    mean, offset = embeddings.mean(axis=0), targets.mean(axis=0)
    centred = embeddings - mean
    square = centred.T @ centred + strength * np.eye(centred.shape[1])
    return SentenceMap(mean, np.linalg.solve(square, centred.T @ (targets - offset)), offset)


@dataclass(frozen=True)
class NamedClasses:
    """Images of classes with names, and what the classes are kinds of."""

    features: Array
    labels: NDArray[np.int64]  # 0, 1, ... in the order of the names
    names: Array  # an embedding for each class
    kinds: Array  # an embedding for each kind
    members: NDArray[np.bool_]  # (kinds, classes)

    def only(self, classes: NDArray[np.int64]) -> "NamedClasses":
        """Some classes, renumbered; kinds of which nothing is left are gone."""
        number = np.full(len(self.names), -1)
        number[classes] = np.arange(len(classes))
        kept, left = number[self.labels] >= 0, self.members[:, classes].any(axis=1)
        return NamedClasses(
            self.features[kept],
            number[self.labels[kept]],
            self.names[classes],
            self.kinds[left],
            self.members[left][:, classes],
        )


def fit(known: NamedClasses, output: int, shrink: float, strength: float) -> tuple[ImageMap, SentenceMap]:
    """Both maps; a kind is where the mean of its classes is."""
    images = whitening(known.features, known.labels, output, shrink)
    targets = images(class_means(known.features, known.labels))
    shares = known.members / np.maximum(known.members.sum(axis=1, keepdims=True), 1)
    embeddings, targets = np.concatenate([known.names, known.kinds]), np.concatenate([targets, shares @ targets])
    return images, ridge(embeddings, targets, strength)


def accuracy_on_unseen(known: NamedClasses, output: int, shrink: float, strength: float) -> float:
    """Zero-shot accuracy on classes that the maps never saw, mean over the folds."""
    numbers = np.random.default_rng(0).permutation(len(known.names))
    found = []
    for held in np.array_split(numbers, FOLDS):
        images, sentences = fit(known.only(np.setdiff1d(numbers, held)), output, shrink, strength)
        unseen = known.only(np.sort(held))
        likeness = _unit(images(unseen.features)) @ _unit(sentences(unseen.names)).T
        found.append(np.mean(likeness.argmax(axis=1) == unseen.labels))
    return float(np.mean(found))


def choose_strengths(known: NamedClasses, output: int) -> tuple[float, float]:
    """The best on held-out classes."""
    return max(product(SHRINKS, RIDGES), key=lambda pair: accuracy_on_unseen(known, output, *pair))


def _unit(rows: Array) -> Array:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


# 3. Text


def distil(phrases: Sequence[str], targets: Tensor, steps: int, batch: int, seed: int) -> CausalText:
    """A tower that gives each phrase its target, whichever sentence it stands in and whatever is put before it."""
    generator = torch.Generator().manual_seed(seed)
    tower = CausalText(TEXT, vocabulary=VOCABULARY, positions=POSITIONS, output=targets.shape[1])
    _initialise(tower, generator)
    rows = clip_tokenizer().rows
    optimiser = torch.optim.AdamW(tower.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=steps)
    for step in range(steps):
        chosen = torch.randint(len(phrases), (batch,), generator=generator)
        template = TEMPLATES[int(torch.randint(len(TEMPLATES), (), generator=generator))]
        sentences = split_sentences(rows([template.format(phrases[number]) for number in chosen.tolist()]))
        features = tower(sentences, _random_context(generator) if step % 2 else None)
        loss = (1 - F.cosine_similarity(features, targets[chosen])).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: cosine {1 - loss.item():.3f}", flush=True)
    return tower


def _random_context(generator: torch.Generator) -> Tensor:
    """One to sixteen vectors of the size of words."""
    length = int(torch.randint(1, 17, (), generator=generator))
    return 0.02 * torch.randn(length, TEXT.width, generator=generator)


def _initialise(tower: CausalText, generator: torch.Generator) -> None:
    """CLIP's own first scales; biases begin at 0, norms at 1."""
    for name, value in tower.named_parameters():
        if value.dim() > 1:
            is_table = name.startswith(("embedding", "positions"))
            nn.init.normal_(value, std=0.02 if is_table else value.shape[1] ** -0.5, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(value)


# Reading and writing


@torch.no_grad()
def image_features(dino: Dinov2Model, positions: Tensor, files: Sequence[Path], batch: int = 64) -> Array:
    """The class token after the last norm, as our own tower gives it."""
    width = dino.config.hidden_size
    tower = vision_tower(dino, positions, torch.zeros(width), torch.eye(width)).eval()
    transform = ImageTransform(IMAGE, IMAGE, mean=MEAN, std=STD)
    found = []
    for first in range(0, len(files), batch):
        pixels = torch.from_numpy(np.stack([transform(Image.open(file)) for file in files[first : first + batch]]))
        found.append(tower(tower.embed(pixels)).numpy().astype(np.float64))
    return np.concatenate(found)


@torch.no_grad()
def sentence_embeddings(folder: Path, sentences: Sequence[str], batch: int = 256) -> Array:
    """The mean of a sentence's token vectors, of length 1: as sentence-transformers does for this model."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = []
    for first in range(0, len(sentences), batch):
        tokens = tokenizer(list(sentences[first : first + batch]), padding=True, truncation=True, return_tensors="pt")
        states, mask = model(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
        found.append(F.normalize((states * mask).sum(1) / mask.sum(1), dim=1).numpy().astype(np.float64))
    return np.concatenate(found)


def read_classes(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Folder, name and kinds of each class."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.strip():
            folder, name, *kinds = line.split("\t")
            yield folder, name, kinds


def read_images(arguments: argparse.Namespace, dino: Dinov2Model, positions: Tensor) -> NamedClasses:
    classes = list(read_classes(arguments.classes))
    kinds = sorted({kind for _, _, of in classes for kind in of})
    files = [sorted(path for path in (arguments.images / folder).rglob("*.*")) for folder, _, _ in classes]
    names = [SENTENCE.format(name) for _, name, _ in classes] + [SENTENCE.format(kind) for kind in kinds]
    embeddings = sentence_embeddings(arguments.minilm, names)
    return NamedClasses(
        image_features(dino, positions, [file for of in files for file in of]),
        np.repeat(np.arange(len(classes)), [len(of) for of in files]),
        embeddings[: len(classes)],
        embeddings[len(classes) :],
        np.array([[kind in of for _, _, of in classes] for kind in kinds], dtype=bool).reshape(-1, len(classes)),
    )


def save(folder: Path, vision: VisionTower, text: CausalText) -> None:
    """A Hugging Face `CLIPModel` folder in fp16, without a first norm and with a bias at the patches."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = to_hugging_face(vision, text, torch.tensor(math.log(SCALE)))
    save_file({k: v.half().contiguous() for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    towers = {"vision_config": _tower(vision.shape), "text_config": _tower(text.shape)}
    towers["vision_config"] |= {"image_size": vision.image, "patch_size": vision.patch}
    towers["text_config"] |= {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "eos_token_id": 49407}
    config = {"architectures": ["CLIPModel"], "model_type": "clip", "projection_dim": vision.output} | towers
    size = {"shortest_edge": vision.image}, {"height": vision.image, "width": vision.image}
    preprocessor = {"size": size[0], "crop_size": size[1], "resample": 3, "image_mean": MEAN, "image_std": STD}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=1) + "\n")


def _tower(shape: TowerShape) -> dict[str, object]:
    return {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.hidden,
        "hidden_act": shape.activation,
        "layer_norm_eps": shape.epsilon,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("dinov2", "minilm", "images", "classes", "phrases", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000, help="of teaching the text tower")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dino = Dinov2Model.from_pretrained(arguments.dinov2).eval()
    side = IMAGE // dino.config.patch_size
    positions = centre_positions(dino.state_dict()["embeddings.position_embeddings"][0], GRID, side)
    known = read_images(arguments, dino, positions)
    shrink, strength = choose_strengths(known, OUTPUT)
    unseen = accuracy_on_unseen(known, OUTPUT, shrink, strength)
    print(f"shrink {shrink}, ridge {strength}: {unseen:.1%} right on unseen classes", flush=True)
    images, sentences = fit(known, OUTPUT, shrink, strength)
    vision = vision_tower(dino, positions, torch.tensor(images.mean).float(), torch.tensor(images.project).float())
    phrases = [line for line in arguments.phrases.read_text(encoding="utf-8").splitlines() if line.strip()]
    embeddings = sentence_embeddings(arguments.minilm, [SENTENCE.format(phrase) for phrase in phrases])
    targets = torch.tensor(sentences(embeddings)).float()
    save(arguments.out, vision, distil(phrases, targets, arguments.steps, arguments.batch, arguments.seed))


if __name__ == "__main__":
    main()
