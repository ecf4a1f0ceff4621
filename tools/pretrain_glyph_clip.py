"""Pre-train `glyph-clip`, the small CLIP inside the package, on printed glyphs.

    .venv/bin/python tools/pretrain_glyph_clip.py            # about half an hour on one core

It is trained on digits and letters rendered from the fonts of matplotlib, with captions from several templates.
scikit-learn's handwritten digits are therefore a real domain shift. All randomness comes from one seed. The result is a
Hugging Face `CLIPModel` folder in fp16, src/fedcopl/clip/glyph_clip.
"""

import argparse
import json
import math
import string
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import save_file
from torch import Tensor

from fedcopl.clip.blocks import TowerShape
from fedcopl.clip.text_towers import CausalText, split_sentences
from fedcopl.clip.vision_towers import VisionTower
from glyph_tokenizer import END, START, build_tokenizer
from hugging_face_export import to_hugging_face

FOLDER = Path(__file__).parents[1] / "src/fedcopl/clip/glyph_clip"
FONTS = (
    "DejaVuSans DejaVuSans-Bold DejaVuSans-Oblique DejaVuSansMono DejaVuSansMono-Bold DejaVuSerif DejaVuSerif-Bold "
    "DejaVuSerif-Italic STIXGeneral STIXGeneralBol STIXGeneralItalic STIXGeneralBolIta cmr10 cmb10 cmss10 cmti10 cmtt10"
).split()
DIGITS = "zero one two three four five six seven eight nine".split()
NAMES = [*DIGITS, *(f"letter {letter}" for letter in string.ascii_lowercase)]
# Long and short templates train many positions, because a learned context moves the name to position 17.
TEMPLATES = (
    "a photo of a {}",
    "a photo of a {}.",
    "a picture of the {}.",
    "{}",
    "{}.",
    "the {}",
    "this is a {}.",
    "a small grey image of a {}.",
    "a printed {} on dark paper.",
    "one bright character on a dark page, the {}.",
    "a low resolution photo of a single character that reads {}.",
    "a blurry little picture in black and white of what somebody printed: the {}.",
    "in this small square picture, cut out of a printed page and made very coarse, there is a {}.",
    "a picture that has been scaled down to a few grey dots, where one can still make out the shape of a {}.",
)
VISION = TowerShape(width=128, depth=4, heads=4, hidden=512)
TEXT = TowerShape(width=128, depth=3, heads=4, hidden=512)
PATCH, IMAGE, COARSE, OUTPUT, POSITIONS, CANVAS = 8, 32, 8, 128, 40, 64
MEAN = STD = 0.5


def render_glyphs() -> tuple[Tensor, Tensor]:
    """Return every glyph in every font, (n, 1, CANVAS, CANVAS) from 0 to 1, and its index in NAMES."""
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    glyphs = [(digit, index) for index, digit in enumerate(string.digits)]
    glyphs += [(f(letter), 10 + i) for i, letter in enumerate(string.ascii_lowercase) for f in (str.lower, str.upper)]
    inked = [
        (_render(ImageFont.truetype(str(folder / f"{font}.ttf"), 48), character), label)
        for font in FONTS
        for character, label in glyphs
    ]
    return torch.stack([ink for ink, _ in inked]), torch.tensor([label for _, label in inked])


def _render(font: ImageFont.FreeTypeFont, character: str) -> Tensor:
    canvas = Image.new("L", (CANVAS, CANVAS))
    ImageDraw.Draw(canvas).text((CANVAS / 2, CANVAS / 2), character, fill=255, font=font, anchor="mm")
    return torch.from_numpy(np.asarray(canvas, np.float32) / 255)[None]


def distort(ink: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate, shear, bend and thicken each glyph at random."""
    n = len(ink)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(n, *shape, generator=generator) * (high - low) + low

    angle, shear = uniform(-0.3, 0.3), uniform(-0.4, 0.4)
    turn = torch.stack([angle.cos(), -angle.sin() + shear, angle.sin(), angle.cos()], 1).view(n, 2, 2) * 1.1
    grid = F.affine_grid(torch.cat([turn, torch.zeros(n, 2, 1)], 2), [n, 1, CANVAS, CANVAS], align_corners=False)
    strength = uniform(0.0, 0.18, 1, 1, 1)
    bend = F.interpolate(uniform(-1, 1, 2, 4, 4), (CANVAS, CANVAS), mode="bicubic") * strength
    bent = F.grid_sample(ink, grid + bend.permute(0, 2, 3, 1), align_corners=False)
    pen = torch.stack([bent, F.max_pool2d(bent, 3, 1, 1), F.max_pool2d(bent, 5, 1, 2)])
    return pen[torch.randint(len(pen), (n,), generator=generator), torch.arange(n)]


def fill_box(ink: Tensor, generator: torch.Generator) -> Tensor:
    """Crop each glyph to its bounding box; stretch it at random between its shape and the whole square."""
    columns, rows = (ink > 0.2).any(2).squeeze(1), (ink > 0.2).any(3).squeeze(1)
    (left, right), (top, bottom) = _extent(columns), _extent(rows)
    half = torch.stack([right - left, bottom - top], 1) / CANVAS + 0.02
    centre = torch.stack([right + left, bottom + top], 1) / CANVAS - 1
    longest = half.max(1, keepdim=True).values
    stretch = torch.rand(len(ink), 1, generator=generator)  # 0: keeps its aspect ratio, 1: fills the square
    half = half * stretch + longest * (1 - stretch)
    move = torch.diag_embed(half)
    grid = F.affine_grid(torch.cat([move, centre[..., None]], 2), [len(ink), 1, 32, 32], align_corners=False)
    return F.grid_sample(ink, grid, align_corners=False)


def _extent(hit: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and last + 1 true position of each row; the whole row if none is true."""
    hit = hit | ~hit.any(1, keepdim=True)
    first = hit.float().argmax(1)
    last = hit.shape[1] - hit.flip(1).float().argmax(1)
    return first.float(), last.float()


def coarse_pixels(ink: Tensor) -> Tensor:
    """Reduce to 8 x 8 dots of 17 grey levels, as the digits of scikit-learn, and resize to the model's input."""
    dots = F.adaptive_avg_pool2d(ink, COARSE)
    dots = dots / dots.amax((2, 3), keepdim=True).clamp(min=0.1)  # thin strokes do not fill a dot
    dots = (dots * 16).round() / 16
    pixels = F.interpolate(dots, (IMAGE, IMAGE), mode="bicubic", antialias=True).clamp(0, 1)
    return ((pixels - MEAN) / STD).expand(-1, 3, -1, -1)


def initialise(vision: VisionTower, text: CausalText, generator: torch.Generator) -> None:
    """Initialise weights as CLIP does."""
    for tower in (vision, text):
        for parameter in tower.parameters():
            if parameter.dim() > 1:
                std = parameter[0].numel() ** -0.5
                torch.nn.init.trunc_normal_(parameter, std=min(std, 0.09), generator=generator)
    for parameter in (vision.class_token, vision.positions, text.positions):
        torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    torch.nn.init.normal_(text.embedding.weight, std=0.02, generator=generator)
    for module in (*vision.modules(), *text.modules()):
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            torch.nn.init.zeros_(module.bias)


def train(steps: int, batch: int, seed: int) -> tuple[VisionTower, CausalText, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ink, labels = render_glyphs()
    tokenizer = build_tokenizer(template.format(name) for template in TEMPLATES for name in NAMES)
    vision = VisionTower(VISION, patch_size=PATCH, image_size=IMAGE, output=OUTPUT, patch_bias=False, norm_first=True)
    text = CausalText(TEXT, vocabulary=tokenizer.get_vocab_size(), positions=POSITIONS, output=OUTPUT)
    initialise(vision, text, generator)
    scale = torch.nn.Parameter(torch.tensor(math.log(1 / 0.07)))
    parameters = [*vision.parameters(), *text.parameters()]
    decayed = [p for p in parameters if p.dim() > 1]
    plain = [p for p in parameters if p.dim() <= 1] + [scale]
    optimiser = torch.optim.AdamW(
        [{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=1e-3, weight_decay=0.1
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=steps, pct_start=0.08)
    for step in range(steps):
        rows = torch.randint(len(ink), (batch,), generator=generator)
        with torch.no_grad():
            pixels = coarse_pixels(fill_box(distort(ink[rows], generator), generator))
        templates = torch.randint(len(TEMPLATES), (len(NAMES),), generator=generator)
        captions = [TEMPLATES[t].format(name) for t, name in zip(templates.tolist(), NAMES, strict=True)]
        sentences = split_sentences([encoding.ids for encoding in tokenizer.encode_batch(captions)])
        images = F.normalize(vision(vision.embed(pixels)), dim=-1)
        names = F.normalize(text(sentences), dim=-1)
        logits = scale.exp() * images @ names.T
        loss = matching_loss(logits, labels[rows])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*parameters, scale], 1.0)
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            scale.clamp_(max=math.log(100))
        if step % 50 == 0 or step == steps - 1:
            accuracy = (logits.argmax(1) == labels[rows]).float().mean()
            print(f"step {step}  loss {loss:.3f}  accuracy {accuracy:.3f}  scale {scale.exp():.1f}", flush=True)
    return vision, text, scale


def matching_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return CLIP's symmetric loss if a caption may belong to several images of the batch."""
    image_to_text = F.cross_entropy(logits, labels)
    targets = F.one_hot(labels, logits.shape[1]).T.float()
    present = targets.sum(1) > 0
    targets = targets[present] / targets[present].sum(1, keepdim=True)
    text_to_image = -(targets * logits.T[present].log_softmax(1)).sum(1).mean()
    return (image_to_text + text_to_image) / 2


def save(folder: Path, vision: VisionTower, text: CausalText, scale: Tensor) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(template.format(name) for template in TEMPLATES for name in NAMES)
    weights = to_hugging_face(vision, text, scale)
    save_file({k: v.half().contiguous() for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(tokenizer), indent=2) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps(_preprocessor(), indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))


def _config(tokenizer) -> dict:
    def tower(shape: TowerShape) -> dict:
        return {
            "hidden_size": shape.width,
            "num_hidden_layers": shape.depth,
            "num_attention_heads": shape.heads,
            "intermediate_size": shape.hidden,
            "hidden_act": shape.activation,
            "layer_norm_eps": shape.epsilon,
            "projection_dim": OUTPUT,
        }

    start, end = tokenizer.token_to_id(START), tokenizer.token_to_id(END)
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": OUTPUT,
        "logit_scale_init_value": 2.6592,
        "torch_dtype": "float16",
        "vision_config": {
            "model_type": "clip_vision_model",
            **tower(VISION),
            "image_size": IMAGE,
            "patch_size": PATCH,
        },
        "text_config": {
            "model_type": "clip_text_model",
            **tower(TEXT),
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": POSITIONS,
            "bos_token_id": start,
            "eos_token_id": end,
            "pad_token_id": end,
        },
    }


def _preprocessor() -> dict:
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": IMAGE},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": IMAGE, "width": IMAGE},
        "do_convert_rgb": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [MEAN] * 3,
        "image_std": [STD] * 3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    save(arguments.out, *train(arguments.steps, arguments.batch, arguments.seed))


if __name__ == "__main__":
    main()
