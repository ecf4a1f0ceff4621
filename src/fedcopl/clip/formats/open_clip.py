"""OpenAI's weights files and open_clip folders: CLIP, SigLIP, and vision transformers of timm with a BERT."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ..blocks import Activation
from ..preprocess import HALF, read_open_clip_transform
from ..text_towers import BertText, CausalText, PaddedText, TextTower, pad_rows, split_at_end
from ..tokenizer import Tokenizer, canonicalize_text, clip_tokenizer, read_tokenizer
from ..vision_towers import VisionTower
from .files import Weights, positive, read_json, read_weights
from .layouts import (
    BlockConfig,
    ClipParts,
    WeightNames,
    build_bert,
    build_resnet,
    build_text,
    build_vision,
    check_towers,
    compare_sizes,
    weight_names,
)

OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_Config = Mapping[str, Any]

# Supported settings of each kind of tower; other settings are refused.
_PLAIN_VISION = {"image_size", "layers", "width", "head_width", "mlp_ratio", "patch_size", "no_ln_pre"}
_PLAIN_TEXT = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"}
_TIMM_VISION = {"image_size", "timm_model_name", "timm_model_pretrained", "timm_pool", "timm_proj"}
_TRAINING_ONLY = {"timm_drop", "timm_drop_path", "hf_model_pretrained", "hf_tokenizer_name"}
_SIGLIP_TEXT_SETTINGS = {"no_causal_mask", "proj_bias", "pool_type", "norm_kwargs", "act_kwargs", "tokenizer_kwargs"}
_BERT_SETTINGS = {"hf_model_name", "hf_proj_type", "hf_pooler_type", "proj", "pooler_type", "tokenizer_kwargs"}
# Plain vision transformers of timm; only the name determines the number of heads.
_TIMM_NAME = re.compile(r"vit_(tiny|small|base|large|so400m|giantopt)_patch(\d+)_(siglip_)?(\d+)")
_TIMM_HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "so400m": 16, "giantopt": 16}
# These use the tanh approximation of GELU, the others exact GELU.
_TIMM_TANH = re.compile(r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_.+|vit_large_patch16_siglip_512")
# The most similar supported model for unsupported values of timm_model_name.
_MOST_SIMILAR_TIMM = (
    (r"eva", "facebook/metaclip-b16-fullcc2.5b"),
    (r"fastvit|vit_.*_mci", "wkcn/TinyCLIP-ViT-40M-32-Text-19M-LAION400M"),
    (r"resnet|convnext", "timm/resnet50_clip.openai"),
)
_TIMM_EPSILON, _BERT_EPSILON = 1e-6, 1e-12
_CLS_POOLER = "cls_last_hidden_state_pooler"
_OPENAI_BLOCK = weight_names("""
    norm_attention.*   ln_1.*
    query_key_value.*  attn.in_proj_*
    out.*              attn.out_proj.*
    norm_mlp.*         ln_2.*
    up.*               mlp.c_fc.*
    down.*             mlp.c_proj.*
""")
_OPENAI_VISION = WeightNames(
    weight_names("""
        class_token     visual.class_embedding
        patches.*       visual.conv1.*
        positions       visual.positional_embedding
        norm_first.*    visual.ln_pre.*
        norm_last.*     visual.ln_post.*
        project.weight  visual.proj
    """),
    "visual.transformer.resblocks",
    _OPENAI_BLOCK,
    transposed=frozenset({"project.weight"}),
)
_OPENAI_TEXT = WeightNames(
    weight_names("""
        embedding.weight  token_embedding.weight
        positions         positional_embedding
        norm_last.*       ln_final.*
        project.weight    text_projection
    """),
    "transformer.resblocks",
    _OPENAI_BLOCK,
    transposed=frozenset({"project.weight"}),
)
_SIGLIP_TEXT = WeightNames(
    weight_names("""
        embedding.weight  text.token_embedding.weight
        positions         text.positional_embedding
        norm_last.*       text.ln_final.*
        project.*         text.text_projection.*
    """),
    "text.transformer.resblocks",
    _OPENAI_BLOCK,
)
_TIMM_BLOCK = weight_names("""
    norm_attention.*   norm1.*
    query_key_value.*  attn.qkv.*
    out.*              attn.proj.*
    norm_mlp.*         norm2.*
    up.*               mlp.fc1.*
    down.*             mlp.fc2.*
""")
_TIMM_VISION_NAMES = """
    patches.*    visual.trunk.patch_embed.proj.*
    positions    visual.trunk.pos_embed
    norm_last.*  visual.trunk.norm.*
"""
_TIMM_CLASS_NAMES = """
    class_token     visual.trunk.cls_token
    project.weight  visual.head.proj.weight
"""
_TIMM_POOL_NAMES = """
    pool.probe              visual.trunk.attn_pool.latent
    pool.query_key_value.*  visual.trunk.attn_pool.q.* visual.trunk.attn_pool.kv.*
    pool.out.*              visual.trunk.attn_pool.proj.*
    pool.norm_mlp.*         visual.trunk.attn_pool.norm.*
    pool.up.*               visual.trunk.attn_pool.mlp.fc1.*
    pool.down.*             visual.trunk.attn_pool.mlp.fc2.*
"""
_TIMM_CLASS_VISION, _TIMM_POOLED_VISION = (
    WeightNames(weight_names(_TIMM_VISION_NAMES + names), "visual.trunk.blocks", _TIMM_BLOCK)
    for names in (_TIMM_CLASS_NAMES, _TIMM_POOL_NAMES)
)
# The projection of a BERT is one matrix, or two with a GELU between them.
_BERT_TEXT = WeightNames(
    weight_names("""
        embedding.weight  text.transformer.embeddings.word_embeddings.weight
        positions         text.transformer.embeddings.position_embeddings.weight
        kinds             text.transformer.embeddings.token_type_embeddings.weight
        norm_first.*      text.transformer.embeddings.LayerNorm.*
        project.weight    text.proj.weight
        project.0.weight  text.proj.0.weight
        project.2.weight  text.proj.2.weight
    """),
    "text.transformer.encoder.layer",
    weight_names("""
        query_key_value.*  attention.self.query.* attention.self.key.* attention.self.value.*
        out.*              attention.output.dense.*
        norm_attention.*   attention.output.LayerNorm.*
        up.*               intermediate.dense.*
        down.*             output.dense.*
        norm_mlp.*         output.LayerNorm.*
    """),
)


class _ResNetNames(WeightNames):
    """Names of a ResNet's parameters, which `ResNetTower` has from OpenAI's checkpoints."""

    def all_of(self, parameter: str) -> tuple[str, ...]:
        return (f"visual.{parameter}",)


_RESNET = _ResNetNames({}, "", {})


def load_openai_file(file: Path, activation: Activation | None) -> ClipParts:
    """Load a bare weights file; the default activation is quick-GELU, as in OpenAI's models."""
    weights = read_weights(file)
    if any(name.startswith("text_model.") for name in weights.tensors):
        raise ModelError(f"{file}: is part of a Hugging Face folder; give the folder {file.parent} instead")
    if not any(name.startswith("visual.") for name in weights.tensors):
        raise ModelError(f"{file}: contains no CLIP in OpenAI's layout; docs/models.md lists the formats")
    blocks = BlockConfig(None, activation or "quick_gelu")
    return _assemble(weights, blocks, blocks, {})


def _assemble(
    weights: Weights, vision_blocks: BlockConfig, text_blocks: BlockConfig, preprocess: Mapping[str, Any]
) -> ClipParts:
    """Build a CLIP from weights in OpenAI's layout."""
    is_resnet = any(name.startswith("visual.layer1.") for name in weights.tensors)
    vision_names = _RESNET if is_resnet else _OPENAI_VISION
    vision = build_resnet(weights, _RESNET) if is_resnet else build_vision(weights, _OPENAI_VISION, vision_blocks)
    text = build_text(weights, _OPENAI_TEXT, text_blocks, CausalText)
    scale = check_towers(weights, (vision, vision_names), (text, _OPENAI_TEXT))
    transform = read_open_clip_transform(preprocess, vision.image_size, weights.file.with_name(OPEN_CLIP_CONFIG))
    collate = partial(split_at_end, end_id=None)
    return ClipParts(vision, text, scale, _plain_tokenizer(weights, text), transform, collate)


def _plain_tokenizer(weights: Weights, text: TextTower) -> Tokenizer:
    """Return CLIP's tokenizer if the text tower has its vocabulary, otherwise the tokenizer in the weights' folder."""
    clip = clip_tokenizer(pad_id=0)
    return clip if text.embedding.num_embeddings == clip.vocabulary else _folder_tokenizer(weights, text)


def _folder_tokenizer(weights: Weights, text: TextTower, clean: Callable[[str], str] | None = None) -> Tokenizer:
    tokenizer, rows = read_tokenizer(weights.file.parent, clean), text.embedding.num_embeddings
    if tokenizer is None or tokenizer.vocabulary > rows:
        raise ModelError(
            f"{weights.file}: has a vocabulary of {rows} tokens; put the matching tokenizer.json into its folder"
        )
    return tokenizer


def load_open_clip_folder(folder: Path) -> ClipParts:
    """Load a folder with open_clip_config.json."""
    file = folder / OPEN_CLIP_CONFIG
    config = read_json(file)
    model, vision_config, text_config = _sections(config, file)
    preprocess = config.get("preprocess_cfg") or {}
    if vision_config.get("timm_model_name"):
        return _load_with_timm(folder, vision_config, text_config, preprocess, file)
    weights = read_weights(_find_open_clip_weights(folder))
    activation: Activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    head_width = positive(int, vision_config.get("head_width", BlockConfig.head_width), "head_width", file)
    heads = positive(int, text_config.get("heads"), "heads", file)
    vision_blocks = BlockConfig(None, activation, head_width=head_width)
    parts = _assemble(weights, vision_blocks, BlockConfig(heads, activation), preprocess)
    compare_sizes(file, {"": model, "vision_cfg": vision_config, "text_cfg": text_config}, _sizes(parts))
    return parts


def _find_open_clip_weights(folder: Path) -> Path:
    for name in OPEN_CLIP_WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"{folder}: has neither {' nor '.join(OPEN_CLIP_WEIGHTS)}")


def _sections(config: _Config, file: Path) -> tuple[_Config, _Config, _Config]:
    """Return model_cfg and its vision_cfg and text_cfg; raises ModelError for unsupported settings."""
    model = config.get("model_cfg")
    if not isinstance(model, dict):
        raise ModelError(f"{file}: the section model_cfg is missing")
    for name in ("vision_cfg", "text_cfg"):
        if not isinstance(model.get(name), dict):
            raise ModelError(f"{file}: the section model_cfg.{name} is missing")
    vision, text = model["vision_cfg"], model["text_cfg"]
    supported = {"vision_cfg": _PLAIN_VISION, "text_cfg": _PLAIN_TEXT}
    if vision.get("timm_model_name"):
        text_settings = _BERT_SETTINGS if text.get("hf_model_name") else _SIGLIP_TEXT_SETTINGS
        supported = {"vision_cfg": _TIMM_VISION, "text_cfg": _PLAIN_TEXT | text_settings}
    for section, settings in supported.items():
        for setting, value in model[section].items():
            if value and setting not in settings | _TRAINING_ONLY:
                raise ModelError(f"{file}: {section}.{setting} is {value!r}, which is not supported")
    return model, vision, text


def _sizes(parts: ClipParts) -> dict[str, int]:
    """Return the sizes of the weights under the names of open_clip's config."""
    sizes = {
        "embed_dim": parts.text.output,
        "vision_cfg.image_size": parts.vision.image_size,
        "text_cfg.context_length": len(parts.text.positions),
        "text_cfg.vocab_size": parts.text.embedding.num_embeddings,
        "text_cfg.width": parts.text.shape.width,
        "text_cfg.layers": parts.text.shape.depth,
    }
    if isinstance(parts.vision, VisionTower):
        sizes["vision_cfg.width"] = parts.vision.shape.width
        sizes["vision_cfg.layers"] = parts.vision.shape.depth
        sizes["vision_cfg.patch_size"] = parts.vision.patch_size
    return sizes


def _load_with_timm(
    folder: Path, vision_config: _Config, text_config: _Config, preprocess: _Config, file: Path
) -> ClipParts:
    """Load a vision transformer of timm with SigLIP's text tower or a BERT."""
    blocks, is_pooled = _timm_block_config(vision_config["timm_model_name"], file), _is_pooled(vision_config, file)
    weights = read_weights(_find_open_clip_weights(folder))
    vision_names = _TIMM_POOLED_VISION if is_pooled else _TIMM_CLASS_VISION
    image_size = positive(int, vision_config.get("image_size", 224), "image_size", file)
    vision_tower = build_vision(weights, vision_names, blocks, image_size)
    is_bert = bool(text_config.get("hf_model_name"))
    text_tower = (_build_bert_text if is_bert else _build_siglip_text)(weights, text_config, file)
    scale = check_towers(weights, (vision_tower, vision_names), (text_tower, _BERT_TEXT if is_bert else _SIGLIP_TEXT))
    defaults = {"mean": HALF, "std": HALF, "resize_mode": "squash"} if is_pooled else {}
    transform = read_open_clip_transform({**defaults, **preprocess}, vision_tower.image_size, file)
    tokenizer = _timm_tokenizer(weights, text_tower, text_config)
    collate = partial(pad_rows, pad_id=tokenizer.pad_id, length=0 if is_bert else text_tower.context_length)
    return ClipParts(vision_tower, text_tower, scale, tokenizer, transform, collate)


def _is_pooled(vision_config: _Config, file: Path) -> bool:
    """Return whether patches are pooled by attention; otherwise the class token is projected."""
    pool, project = vision_config.get("timm_pool") or "", vision_config.get("timm_proj") or ""
    if (pool, project) not in (("map", "none"), ("", "linear"), ("token", "linear")):
        raise ModelError(
            f"{file}: vision_cfg.timm_pool is {pool!r} with timm_proj {project!r}: only 'map' with 'none' (SigLIP) and "
            "'token' with 'linear' (BiomedCLIP) are supported"
        )
    return pool == "map"


def _timm_block_config(name: Any, file: Path) -> BlockConfig:
    match = _TIMM_NAME.fullmatch(str(name))
    if match is None:
        matching = (model for start, model in _MOST_SIMILAR_TIMM if re.match(start, str(name)))
        similar = next(matching, "timm/ViT-B-16-SigLIP")
        raise ModelError(
            f"{file}: vision_cfg.timm_model_name is {name!r}: only timm's plain vision transformers are supported, "
            f"such as vit_base_patch16_224. The most similar supported model is {similar}"
        )
    activation: Activation = "gelu_tanh" if _TIMM_TANH.fullmatch(match[0]) else "gelu"
    return BlockConfig(_TIMM_HEADS[match[1]], activation, _TIMM_EPSILON)


def _build_siglip_text(weights: Weights, text_config: _Config, file: Path) -> PaddedText:
    """Build SigLIP's text tower; its settings are checked, because a causal tower has the same weights."""
    for setting, required in (("no_causal_mask", True), ("pool_type", "last"), ("proj_bias", True)):
        if text_config.get(setting) != required:
            raise ModelError(f"{file}: text_cfg.{setting} is {text_config.get(setting)!r}; a SigLIP has {required!r}")
    tanh = (text_config.get("act_kwargs") or {}).get("approximate") == "tanh"
    epsilon = positive(float, (text_config.get("norm_kwargs") or {}).get("eps", 1e-5), "norm_kwargs.eps", file)
    heads = positive(int, text_config.get("heads"), "heads", file)
    return build_text(weights, _SIGLIP_TEXT, BlockConfig(heads, "gelu_tanh" if tanh else "gelu", epsilon), PaddedText)


def _build_bert_text(weights: Weights, text_config: _Config, file: Path) -> BertText:
    pooler = text_config.get("hf_pooler_type") or text_config.get("pooler_type") or _CLS_POOLER
    if pooler != _CLS_POOLER:
        raise ModelError(f"{file}: text_cfg.hf_pooler_type is {pooler!r}; only {_CLS_POOLER!r} is supported")
    if not any(name.startswith("text.transformer.encoder.layer.0.attention.self.") for name in weights.tensors):
        raise ModelError(f"{file}: text_cfg.hf_model_name is {text_config['hf_model_name']!r}, which is no BERT")
    length = positive(int, text_config.get("context_length", 77), "context_length", file)
    return build_bert(weights, _BERT_TEXT, BlockConfig(None, "gelu", _BERT_EPSILON), length)


def _timm_tokenizer(weights: Weights, tower: TextTower, text_config: _Config) -> Tokenizer:
    """Read the tokenizer in the folder of the weights, applied after open_clip's cleaning."""
    cleaning = (text_config.get("tokenizer_kwargs") or {}).get("clean")
    is_canonical = cleaning == "canonicalize" or isinstance(tower, PaddedText)
    # open_clip replaces underscores by spaces before it removes punctuation.
    clean_text = (lambda text: canonicalize_text(text.replace("_", " "))) if is_canonical else None
    return _folder_tokenizer(weights, tower, clean_text)
