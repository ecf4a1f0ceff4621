"""The same work as Hugging Face `transformers`: vision forward, and labelling image files."""

import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil as CLIPImageProcessor

from fedcopl.clip.device import Arithmetic
from fedcopl.clip.encoder import Encoder
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.clip.image_tokens import ClientImages, TokenStore
from fedcopl.config import RunConfig
from fedcopl.methods import choose_method
from fedcopl.methods.learner import ClipLearner
from fedcopl.methods.prompted_model import PromptedModel

from .measure import Line, side_by_side

BATCH, FILES, CLASSES = 32, 96, 47


def against_transformers() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs = save_random_clip(folder / "model")
        ours = load_clip(folder / "model")
        yield vision_forward(ours, theirs)
        yield from labelling(ours, theirs, write_images(folder / "images"))


def save_random_clip(folder: Path) -> CLIPModel:
    """A ViT-B/32 with random weights, saved in Hugging Face's form with our small tokenizer beside it."""
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


def vision_forward(ours, theirs) -> Line:
    pixels = torch.randn(BATCH, 3, 224, 224)
    with torch.inference_mode():
        mine, other = side_by_side(
            lambda: ours.encode_image(pixels),
            lambda: theirs.get_image_features(pixel_values=pixels),
            repeats=7,
        )
    detail = f"{mine:.2f} s against {other:.2f} s"
    return Line(f"vision forward, B/32, batch {BATCH}", "transformers", other / mine, 1.0, detail=detail)


def write_images(folder: Path) -> list[Path]:
    """Pictures of a usual size as JPEG files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = [folder / f"{i}.jpg" for i in range(FILES)]
    for path in paths:
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def labelling(ours, theirs, paths: list[Path]) -> Iterator[Line]:
    """Probabilities of all images: from the files, and again with the cut pixels at hand."""
    encoder = Encoder(ours, [f"class {i}" for i in range(CLASSES)], "a photo of a {}", Arithmetic(torch.device("cpu")))
    processor = CLIPImageProcessor()
    weights = torch.randn(CLASSES, 512)
    config = RunConfig()
    model = PromptedModel(choose_method(config), encoder)

    @torch.inference_mode()
    def by_transformers() -> None:
        for start in range(0, FILES, BATCH):
            images = [Image.open(path) for path in paths[start : start + BATCH]]
            pixels = processor(images, return_tensors="pt").pixel_values
            features = theirs.get_image_features(pixel_values=pixels)
            features = getattr(features, "pooler_output", features)
            (100 * features @ weights.T).softmax(-1)

    def cut() -> np.ndarray:
        return np.stack([ours.preprocess.cut(Image.open(path)) for path in paths])

    def label(pixels: np.ndarray) -> None:
        images = ClientImages(TokenStore.of(ours, pixels, memory=0), np.arange(len(pixels)))
        ClipLearner(model, images, {}, config, 0).log_probabilities(None)

    cold, other = side_by_side(lambda: label(cut()), by_transformers, 3)
    detail = f"{cold:.2f} s against {other:.2f} s"
    yield Line(f"labelling {FILES} files, first time", "transformers", other / cold, 1.0, detail=detail)
    pixels = cut()
    warm, other = side_by_side(lambda: label(pixels), by_transformers, 3)
    detail = f"{warm:.2f} s against {other:.2f} s"
    yield Line(f"labelling {FILES} files, again", "transformers", other / warm, 1.15, detail=detail)
