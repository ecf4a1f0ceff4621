"""Make photo-clip: DINOv2's image encoder in CLIP's layout, with a text encoder distilled from a sentence model.

    .venv/bin/python tools/make_photo_clip.py --dinov2 DIR --minilm DIR --images DIR --classes FILE \\
        --phrases FILE --out DIR

`--dinov2` and `--minilm` are downloaded folders of `facebook/dinov2-small` and
`sentence-transformers/all-MiniLM-L6-v2`. `--images` has a folder of images for each class, and the file `--classes` a
line for each folder: folder, name and superclasses, separated by tabs. The file `--phrases` has the nouns that the text
encoder learns, one per line. The tool needs the packages that `make test` installs.

1. Vision: DINOv2's weights; LayerScale is folded into the projections that it scales.
2. Map: image features are whitened within classes and projected on the leading directions of the class means; ridge
   regression maps sentence embeddings to this space. Shrinkage and ridge are chosen by folds of held-out *classes*.
3. Text: a causal transformer is trained to return each phrase's mapped embedding, also with random vectors before the
   words, so that it tolerates a learned context.
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

IMAGE, GRID = 70, 7  # image size in pixels; size of the grid whose central positions are used
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OUTPUT, SCALE = 128, 15.0
TEXT = TowerShape(width=256, depth=4, heads=4, hidden=1024, activation="gelu")
VOCABULARY, POSITIONS = 49408, 77  # CLIP's
SENTENCE = "a photo of a {}."
TEMPLATES = (SENTENCE, "a photo of a {}", "{}", "a picture of the {}.", "this is a {}.", "a blurry photo of a {}.")
SHRINKS = (0.03, 0.1, 0.3)  # of the covariance within classes, towards a multiple of the identity
RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0)
FOLDS = 5


# 1. Vision


def centre_positions(positions: Tensor, grid: int, side: int) -> Tensor:
    """Resize the position embeddings of the patches to grid x grid, and return the class position and the centre.

    The centre of a larger grid keeps the distances of neighbouring patches of the larger image.

    Args:
        positions: Of the class token and n x n patches, (1 + n^2, width).
        grid: Size to which the patches' positions are resized.
        side: Size of the centre; (1 + side^2, width) embeddings are returned.
    """
    of_class, of_patches = positions[:1], positions[1:]
    size, first = math.isqrt(len(of_patches)), (grid - side) // 2
    planes = of_patches.T.reshape(1, -1, size, size)
    resized = F.interpolate(planes, (grid, grid), mode="bilinear", align_corners=False)
    middle = resized[0, :, first : first + side, first : first + side]
    return torch.cat([of_class, middle.flatten(1).T])


def vision_tower(dino: Dinov2Model, positions: Tensor, mean: Tensor, project: Tensor) -> VisionTower:
    """Return DINOv2 as a vision tower of this package; features are (class token - mean) projected by (output, width).

    LayerScale is folded into the weights: lambda * (W x + b) = (lambda W) x + lambda b.
    """
    config, state = dino.config, dino.state_dict()
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
        shape, patch_size=config.patch_size, image_size=side, output=len(project), patch_bias=True, norm_first=False
    )
    weights = {
        "class_token": state["embeddings.cls_token"].flatten(),
        "positions": positions,
        "patches.weight": state["embeddings.patch_embeddings.projection.weight"],
        "patches.bias": state["embeddings.patch_embeddings.projection.bias"],
        "norm_last.weight": state["layernorm.weight"],
        "norm_last.bias": state["layernorm.bias"] - mean,
        "project.weight": project,
    }
    for level in range(shape.depth):
        block = {name.removeprefix(f"encoder.layer.{level}."): value for name, value in state.items()}
        weights |= {f"blocks.{level}.{name}": value for name, value in folded_block(block).items()}
    tower.load_state_dict(weights)
    return tower


def folded_block(dino: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert a block of DINOv2 to the names of this package, with LayerScale folded into the weights."""
    block = {}
    for kind in ("weight", "bias"):
        block[f"norm_attention.{kind}"] = dino[f"norm1.{kind}"]
        block[f"norm_mlp.{kind}"] = dino[f"norm2.{kind}"]
        block[f"query_key_value.{kind}"] = torch.cat([dino[f"attention.{name}_proj.{kind}"] for name in "qkv"])
        block[f"up.{kind}"] = dino[f"mlp.fc1.{kind}"]
        block[f"out.{kind}"] = _scale_rows(dino[f"attention.o_proj.{kind}"], dino["layer_scale1.lambda1"])
        block[f"down.{kind}"] = _scale_rows(dino[f"mlp.fc2.{kind}"], dino["layer_scale2.lambda1"])
    return block


def _scale_rows(weight: Tensor, factors: Tensor) -> Tensor:
    return weight * (factors[:, None] if weight.dim() > 1 else factors)


# 2. The map between images and sentences


@dataclass(frozen=True)
class ImageMap:
    """The map x -> (x - mean) project^T of image features."""

    mean: Array  # (width,)
    project: Array  # (output, width)

    def __call__(self, features: Array) -> Array:
        return (features - self.mean) @ self.project.T


@dataclass(frozen=True)
class SentenceMap:
    """The map of sentence embeddings to the space of mapped image features."""

    mean: Array
    weights: Array  # (embedding, output)
    offset: Array  # (output,)

    def __call__(self, embeddings: Array) -> Array:
        return (embeddings - self.mean) @ self.weights + self.offset


def class_means(features: Array, labels: NDArray[np.int64]) -> Array:
    return np.stack([features[labels == label].mean(axis=0) for label in np.unique(labels)])


def whitening(features: Array, labels: NDArray[np.int64], output: int, shrink: float) -> ImageMap:
    """Whiten features within classes, then project on the directions in which the class means differ most."""
    classes, index = np.unique(labels, return_inverse=True)
    means = class_means(features, labels)
    within = np.cov((features - means[index]).T, bias=True)
    sphere = np.trace(within) / len(within) * np.eye(len(within))
    values, vectors = np.linalg.eigh((1 - shrink) * within + shrink * sphere)
    whiten = vectors / np.sqrt(values) @ vectors.T
    mean = means.mean(axis=0)
    directions = np.linalg.svd((means - mean) @ whiten, full_matrices=False)[2][: min(output, len(classes))]
    missing = np.zeros((output - len(directions), len(within)))
    return ImageMap(mean, np.concatenate([directions @ whiten, missing]))


def ridge(embeddings: Array, targets: Array, strength: float) -> SentenceMap:
    """Return the map that minimises ||E W - T||^2 + strength ||W||^2 for centred embeddings E and targets T."""
    mean, offset = embeddings.mean(axis=0), targets.mean(axis=0)
    centred = embeddings - mean
    square = centred.T @ centred + strength * np.eye(centred.shape[1])
    return SentenceMap(mean, np.linalg.solve(square, centred.T @ (targets - offset)), offset)


@dataclass(frozen=True)
class NamedClasses:
    """Image features of named classes, with superclasses."""

    features: Array
    labels: NDArray[np.int64]  # 0, 1, ... in the order of the names
    names: Array  # an embedding for each class
    superclasses: Array  # an embedding for each superclass
    members: NDArray[np.bool_]  # (superclasses, classes)

    def only(self, classes: NDArray[np.int64]) -> "NamedClasses":
        """Return some classes, renumbered, with the superclasses that have one of them."""
        number = np.full(len(self.names), -1)
        number[classes] = np.arange(len(classes))
        images, superclasses = number[self.labels] >= 0, self.members[:, classes].any(axis=1)
        return NamedClasses(
            self.features[images],
            number[self.labels[images]],
            self.names[classes],
            self.superclasses[superclasses],
            self.members[superclasses][:, classes],
        )


def fit(classes: NamedClasses, output: int, shrink: float, strength: float) -> tuple[ImageMap, SentenceMap]:
    """Fit both maps; the target of a superclass is the mean over its classes."""
    images = whitening(classes.features, classes.labels, output, shrink)
    targets = images(class_means(classes.features, classes.labels))
    shares = classes.members / np.maximum(classes.members.sum(axis=1, keepdims=True), 1)
    embeddings = np.concatenate([classes.names, classes.superclasses])
    targets = np.concatenate([targets, shares @ targets])
    return images, ridge(embeddings, targets, strength)


def accuracy_on_unseen(classes: NamedClasses, output: int, shrink: float, strength: float) -> float:
    """Return the zero-shot accuracy on held-out classes, mean over the folds."""
    numbers = np.random.default_rng(0).permutation(len(classes.names))
    accuracies = []
    for fold in np.array_split(numbers, FOLDS):
        images, sentences = fit(classes.only(np.setdiff1d(numbers, fold)), output, shrink, strength)
        unseen = classes.only(np.sort(fold))
        cosines = _unit(images(unseen.features)) @ _unit(sentences(unseen.names)).T
        accuracies.append(np.mean(cosines.argmax(axis=1) == unseen.labels))
    return float(np.mean(accuracies))


def choose_strengths(classes: NamedClasses, output: int) -> tuple[float, float]:
    """Return shrinkage and ridge with the highest accuracy on held-out classes."""
    return max(product(SHRINKS, RIDGES), key=lambda pair: accuracy_on_unseen(classes, output, *pair))


def _unit(rows: Array) -> Array:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


# 3. Text


def distil(phrases: Sequence[str], targets: Tensor, steps: int, batch: int, seed: int) -> CausalText:
    """Train a text tower to return the target of each phrase in any template, with and without a random context."""
    generator = torch.Generator().manual_seed(seed)
    tower = CausalText(TEXT, vocabulary=VOCABULARY, positions=POSITIONS, output=targets.shape[1])
    _initialise(tower, generator)
    tokenize = clip_tokenizer().rows
    optimiser = torch.optim.AdamW(tower.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=steps)
    for step in range(steps):
        rows_of_batch = torch.randint(len(phrases), (batch,), generator=generator)
        template = TEMPLATES[int(torch.randint(len(TEMPLATES), (), generator=generator))]
        sentences = split_sentences(tokenize([template.format(phrases[number]) for number in rows_of_batch.tolist()]))
        features = tower(sentences, _random_context(generator) if step % 2 else None)
        loss = (1 - F.cosine_similarity(features, targets[rows_of_batch])).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: cosine {1 - loss.item():.3f}", flush=True)
    return tower


def _random_context(generator: torch.Generator) -> Tensor:
    """Return 1 to 16 random vectors with the standard deviation of initial word embeddings."""
    length = int(torch.randint(1, 17, (), generator=generator))
    return 0.02 * torch.randn(length, TEXT.width, generator=generator)


def _initialise(tower: CausalText, generator: torch.Generator) -> None:
    """Initialise weights as CLIP does, and biases with 0."""
    for name, value in tower.named_parameters():
        if value.dim() > 1:
            is_table = name.startswith(("embedding", "positions"))
            nn.init.normal_(value, std=0.02 if is_table else value.shape[1] ** -0.5, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(value)


# Reading and writing


@torch.no_grad()
def image_features(dino: Dinov2Model, positions: Tensor, files: Sequence[Path], batch: int = 64) -> Array:
    """Return the class tokens after the last norm, (n, width)."""
    width = dino.config.hidden_size
    tower = vision_tower(dino, positions, torch.zeros(width), torch.eye(width)).eval()
    transform = ImageTransform(IMAGE, IMAGE, mean=MEAN, std=STD)
    features = []
    for first in range(0, len(files), batch):
        pixels = torch.from_numpy(np.stack([transform(Image.open(file)) for file in files[first : first + batch]]))
        features.append(tower(tower.embed(pixels)).numpy().astype(np.float64))
    return np.concatenate(features)


@torch.no_grad()
def sentence_embeddings(folder: Path, sentences: Sequence[str], batch: int = 256) -> Array:
    """Return the mean token vectors, scaled to length one, as sentence-transformers does for this model."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    embeddings = []
    for first in range(0, len(sentences), batch):
        tokens = tokenizer(list(sentences[first : first + batch]), padding=True, truncation=True, return_tensors="pt")
        states, mask = model(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
        embeddings.append(F.normalize((states * mask).sum(1) / mask.sum(1), dim=1).numpy().astype(np.float64))
    return np.concatenate(embeddings)


def read_classes(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield folder, name and superclasses of each class."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.strip():
            folder, name, *superclasses = line.split("\t")
            yield folder, name, superclasses


def read_images(arguments: argparse.Namespace, dino: Dinov2Model, positions: Tensor) -> NamedClasses:
    classes = list(read_classes(arguments.classes))
    superclasses = sorted({superclass for _, _, above in classes for superclass in above})
    files = [sorted(path for path in (arguments.images / folder).rglob("*.*")) for folder, _, _ in classes]
    names = [SENTENCE.format(name) for name in (*(name for _, name, _ in classes), *superclasses)]
    embeddings = sentence_embeddings(arguments.minilm, names)
    return NamedClasses(
        image_features(dino, positions, [file for folder in files for file in folder]),
        np.repeat(np.arange(len(classes)), [len(folder) for folder in files]),
        embeddings[: len(classes)],
        embeddings[len(classes) :],
        np.array([[name in above for _, _, above in classes] for name in superclasses], bool).reshape(-1, len(classes)),
    )


def save(folder: Path, vision: VisionTower, text: CausalText) -> None:
    """Write a Hugging Face `CLIPModel` in fp16, without the norm before the blocks and with a bias of the patches."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = to_hugging_face(vision, text, torch.tensor(math.log(SCALE)))
    save_file({k: v.half().contiguous() for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    towers = {"vision_config": _tower(vision.shape), "text_config": _tower(text.shape)}
    towers["vision_config"] |= {"image_size": vision.image_size, "patch_size": vision.patch_size}
    towers["text_config"] |= {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "eos_token_id": 49407}
    config = {"architectures": ["CLIPModel"], "model_type": "clip", "projection_dim": vision.output} | towers
    size = {"shortest_edge": vision.image_size}, {"height": vision.image_size, "width": vision.image_size}
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
    parser.add_argument("--steps", type=int, default=3000, help="training steps of the text encoder")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dino = Dinov2Model.from_pretrained(arguments.dinov2).eval()
    side = IMAGE // dino.config.patch_size
    positions = centre_positions(dino.state_dict()["embeddings.position_embeddings"][0], GRID, side)
    classes = read_images(arguments, dino, positions)
    shrink, strength = choose_strengths(classes, OUTPUT)
    accuracy = accuracy_on_unseen(classes, OUTPUT, shrink, strength)
    print(f"shrink {shrink}, ridge {strength}: accuracy {accuracy:.1%} on unseen classes", flush=True)
    images, sentences = fit(classes, OUTPUT, shrink, strength)
    vision = vision_tower(dino, positions, torch.tensor(images.mean).float(), torch.tensor(images.project).float())
    phrases = [line for line in arguments.phrases.read_text(encoding="utf-8").splitlines() if line.strip()]
    embeddings = sentence_embeddings(arguments.minilm, [SENTENCE.format(phrase) for phrase in phrases])
    targets = torch.tensor(sentences(embeddings)).float()
    save(arguments.out, vision, distil(phrases, targets, arguments.steps, arguments.batch, arguments.seed))


if __name__ == "__main__":
    main()
