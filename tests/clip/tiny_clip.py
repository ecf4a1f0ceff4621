"""Random CLIPs made with `transformers`, mostly small ones, and their weights rewritten into the other layouts."""

import re
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
}
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 49408,
    "max_position_embeddings": 24,
}


def tiny_model(*, vision: dict | None = None, text: dict | None = None, seed: int = 0) -> CLIPModel:
    config = CLIPConfig(vision_config=VISION | (vision or {}), text_config=TEXT | (text or {}), projection_dim=40)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return perturbed(CLIPModel(config), seed)


def perturbed(model: CLIPModel, seed: int = 0) -> CLIPModel:
    """Add noise to all parameters, so that initial zeros and ones cannot hide confused weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def large_model(kind: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """At full size. Drawing all its numbers takes longer than using them: a million serve for all, turned each time."""
    with no_init_weights():
        model = kind(config)
    drawn = 0.02 * torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            repeated = drawn.roll(977 * number).repeat(-(-parameter.numel() // len(drawn)))
            parameter.copy_(repeated[: parameter.numel()].view_as(parameter))
        for norm in (module for module in model.modules() if isinstance(module, nn.LayerNorm)):
            norm.weight += 1
    return model.eval()


def save_folder(folder: Path, model: CLIPModel, **options: object) -> Path:
    """Write all files of a Hugging Face repository of a CLIP."""
    model.save_pretrained(folder, **options)
    side = model.config.vision_config.image_size
    CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side}).save_pretrained(
        folder
    )
    clip_bpe().save_pretrained(folder)
    return folder


@cache
def clip_bpe() -> CLIPTokenizer:
    """`transformers`' tokenizer over the vocabulary that `instant-clip-tokenizer` has compiled in."""
    merges = _merges()
    alphabet = _alphabet()
    pieces = [*alphabet, *(letter + "</w>" for letter in alphabet), *("".join(pair) for pair in merges)]
    vocabulary = {piece: place for place, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    assert len(vocabulary) == 49408
    return CLIPTokenizer(vocab=vocabulary, merges=merges)


def _merges() -> list[tuple[str, str]]:
    package = Path(find_spec("instant_clip_tokenizer").origin).parent
    (library,) = (file for file in package.iterdir() if file.suffix in (".so", ".pyd"))
    text = library.read_bytes().split(b"#version: 0.2\n", 1)[1]
    lines = text.split(b"\n", 49152 - 256 - 2)[:-1]  # as OpenAI's code cuts its file
    return [tuple(line.decode().split()) for line in lines]


def _alphabet() -> list[str]:
    """Return a printable character for each byte, as byte-level BPE uses; printable bytes come first."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) for byte in visible] + [chr(256 + place) for place in range(len(hidden))]


def features(model: PreTrainedModel, pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return image features, text features and logits per image of the reference."""
    with torch.no_grad():
        out = model(input_ids=ids, pixel_values=pixels)
    return out.vision_model_output.pooler_output, out.text_model_output.pooler_output, out.logits_per_image


OPENAI_NAMES = (  # Hugging Face's -> OpenAI's
    (r"vision_model\.embeddings\.class_embedding", "visual.class_embedding"),
    (r"vision_model\.embeddings\.patch_embedding\.", "visual.conv1."),
    (r"vision_model\.embeddings\.position_embedding\.weight", "visual.positional_embedding"),
    (r"vision_model\.pre_layrnorm\.", "visual.ln_pre."),
    (r"vision_model\.post_layernorm\.", "visual.ln_post."),
    (r"text_model\.embeddings\.token_embedding\.", "token_embedding."),
    (r"text_model\.embeddings\.position_embedding\.weight", "positional_embedding"),
    (r"text_model\.final_layer_norm\.", "ln_final."),
    (r"vision_model\.encoder\.layers\.", "visual.transformer.resblocks."),
    (r"text_model\.encoder\.layers\.", "transformer.resblocks."),
    (r"\.layer_norm(\d)\.", r".ln_\1."),
    (r"\.self_attn\.out_proj\.", ".attn.out_proj."),
    (r"\.mlp\.fc1\.", ".mlp.c_fc."),
    (r"\.mlp\.fc2\.", ".mlp.c_proj."),
)


def in_openai_layout(model: CLIPModel) -> dict[str, Tensor]:
    theirs = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    ours = {
        "visual.proj": theirs.pop("visual_projection.weight").T.contiguous(),
        "text_projection": theirs.pop("text_projection.weight").T.contiguous(),
    }
    for name in [name for name in theirs if ".q_proj." in name]:
        parts = [theirs.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
        ours[_renamed(re.sub(r"self_attn\.q_proj\.", "attn.in_proj_", name))] = torch.cat(parts)
    return ours | {_renamed(name): tensor for name, tensor in theirs.items()}


def _renamed(name: str) -> str:
    for pattern, replacement in OPENAI_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


class _Tree(nn.Module):
    """A module with tensors under dotted names."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def save_torchscript(weights: dict[str, Tensor], file: Path) -> Path:
    root = _Tree()
    for name, tensor in weights.items():
        *path, last = name.split(".")
        module: nn.Module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, _Tree())
            module = module._modules[part]
        module.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # OpenAI's files are in a format that torch has left
        torch.jit.trace(root, torch.zeros(1)).save(file)
    return file
