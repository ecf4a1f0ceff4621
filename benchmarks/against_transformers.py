"""Comparison with Hugging Face `transformers`: forward pass of images, and labelling of image files."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil as CLIPImageProcessor

from fedcopl.clip.device import Arithmetic
from fedcopl.clip.encoder import ClientImages, Encoder, TokenStore
from fedcopl.clip.frozen_clip import Clip, load_clip
from fedcopl.config import RunConfig
from fedcopl.data.parallel import parallel_map
from fedcopl.methods import choose_method
from fedcopl.methods.learner import ClipLearner
from fedcopl.methods.prompted_model import PromptedModel

from .measure import TURNS, Line, measure_alternately, timed

BATCH, FILES, CLASSES = 32, 96, 47


def against_transformers() -> Iterator[Line]:
    with both_models() as (clip, reference, folder):
        yield vision_forward(clip, reference, BATCH, 1.0)
        yield from labelling(clip, reference, write_images(folder / "images", FILES), (1.3, 1.15))


@contextmanager
def both_models() -> Iterator[tuple[Clip, CLIPModel, Path]]:
    """Yield the same weights as a `Clip` and as a `CLIPModel` of transformers, and a scratch folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = save_random_clip(folder / "model")
        yield load_clip(folder / "model"), reference, folder


def save_random_clip(folder: Path) -> CLIPModel:
    """Save a ViT-B/32 with random weights in Hugging Face's layout, with the tokenizer of glyph-clip."""
    torch.manual_seed(0)
    tokenizer = files("fedcopl.clip") / "glyph_clip" / "tokenizer.json"
    start, end = (
        Tokenizer.from_str(tokenizer.read_text()).token_to_id(f"<|{edge}oftext|>") for edge in ("start", "end")
    )
    words = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    model = CLIPModel(CLIPConfig(text_config=words)).eval()
    model.save_pretrained(folder)
    CLIPImageProcessor().save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    return model


def vision_forward(clip: Clip, reference: CLIPModel, batch: int, reach: float | None = None, turns: int = 7) -> Line:
    pixels = torch.randn(batch, 3, 224, 224)
    encode, reference_encode = (
        lambda: clip.encode_image(pixels),
        lambda: reference.get_image_features(pixel_values=pixels),
    )
    with torch.inference_mode():
        encode(), reference_encode()
        measured = measure_alternately(timed(encode), timed(reference_encode), turns)
    what = f"vision forward, B/32, batch {batch}"
    return Line(f"vision-batch-{batch}", what, "transformers", measured.ratio, reach, detail=measured.in_seconds)


def write_images(folder: Path, count: int) -> list[Path]:
    """Write random images of 640 x 480 pixels as JPEG files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = [folder / f"{i}.jpg" for i in range(count)]
    for path in paths:
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def labelling(
    clip: Clip,
    reference: CLIPModel,
    paths: list[Path],
    reach: tuple[float | None, float | None] = (None, None),
    turns: int = TURNS,
) -> Iterator[Line]:
    """Measure class probabilities of all images: from the files, and from cached pixels."""
    encoder = Encoder(clip, [f"class {i}" for i in range(CLASSES)], "a photo of a {}", Arithmetic(torch.device("cpu")))
    processor = CLIPImageProcessor()
    weights = torch.randn(CLASSES, 512)
    config = RunConfig()
    model = PromptedModel(choose_method(config), encoder)

    @torch.inference_mode()
    def by_transformers() -> None:
        for start in range(0, len(paths), BATCH):
            images = [Image.open(path) for path in paths[start : start + BATCH]]
            pixels = processor(images, return_tensors="pt").pixel_values
            features = reference.get_image_features(pixel_values=pixels)
            features = getattr(features, "pooler_output", features)
            (100 * features @ weights.T).softmax(-1)

    def read() -> np.ndarray:
        cropped = parallel_map(lambda number: clip.preprocess.resize_and_crop(Image.open(paths[number])), len(paths))
        return np.stack(list(cropped))

    def label(pixels: np.ndarray) -> None:
        images = ClientImages(TokenStore.of(clip, pixels, memory=0), np.arange(len(pixels)))
        ClipLearner(model, images, {}, config, 0).log_probabilities(None)

    pixels = read()
    label(pixels), by_transformers()
    for name, words, work, target in (
        ("cold", "first time", lambda: label(read()), reach[0]),
        ("warm", "again", lambda: label(pixels), reach[1]),
    ):
        measured = measure_alternately(timed(work), timed(by_transformers), turns)
        key, what = f"labelling-{len(paths)}-{name}", f"labelling {len(paths)} files, {words}"
        yield Line(key, what, "transformers", measured.ratio, target, detail=measured.in_seconds)
