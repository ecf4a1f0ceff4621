"""open_clip folders written from models of `transformers`: a SigLIP, and a ViT with a BERT as in BiomedCLIP."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel, BertTokenizer, SiglipModel, ViTConfig, ViTModel

from clip.tiny_clip import perturbed
from clip.tiny_siglip import word_pieces

SIGLIP_NAMES = (  # Hugging Face's -> open_clip's
    (r"vision_model\.embeddings\.patch_embedding\.", "visual.trunk.patch_embed.proj."),
    (r"vision_model\.embeddings\.position_embedding\.weight", "visual.trunk.pos_embed"),
    (r"vision_model\.post_layernorm\.", "visual.trunk.norm."),
    (r"vision_model\.head\.probe", "visual.trunk.attn_pool.latent"),
    (r"vision_model\.head\.attention\.out_proj\.", "visual.trunk.attn_pool.proj."),
    (r"vision_model\.head\.layernorm\.", "visual.trunk.attn_pool.norm."),
    (r"vision_model\.head\.mlp\.", "visual.trunk.attn_pool.mlp."),
    (r"vision_model\.encoder\.layers\.(\d+)\.layer_norm(\d)\.", r"visual.trunk.blocks.\1.norm\2."),
    (r"vision_model\.encoder\.layers\.(\d+)\.self_attn\.out_proj\.", r"visual.trunk.blocks.\1.attn.proj."),
    (r"vision_model\.encoder\.layers\.", "visual.trunk.blocks."),
    (r"text_model\.embeddings\.token_embedding\.", "text.token_embedding."),
    (r"text_model\.embeddings\.position_embedding\.weight", "text.positional_embedding"),
    (r"text_model\.final_layer_norm\.", "text.ln_final."),
    (r"text_model\.head\.", "text.text_projection."),
    (r"text_model\.encoder\.layers\.(\d+)\.layer_norm(\d)\.", r"text.transformer.resblocks.\1.ln_\2."),
    (r"text_model\.encoder\.layers\.(\d+)\.self_attn\.", r"text.transformer.resblocks.\1.attn."),
    (r"text_model\.encoder\.layers\.(\d+)\.mlp\.fc1\.", r"text.transformer.resblocks.\1.mlp.c_fc."),
    (r"text_model\.encoder\.layers\.(\d+)\.mlp\.fc2\.", r"text.transformer.resblocks.\1.mlp.c_proj."),
)
VIT_NAMES = (
    (r"embeddings\.cls_token", "visual.trunk.cls_token"),
    (r"embeddings\.position_embeddings", "visual.trunk.pos_embed"),
    (r"embeddings\.patch_embeddings\.projection\.", "visual.trunk.patch_embed.proj."),
    (r"layernorm\.", "visual.trunk.norm."),
    (r"(?:encoder\.layer|layers)\.(\d+)\.(?:layernorm_before|norm1)\.", r"visual.trunk.blocks.\1.norm1."),
    (r"(?:encoder\.layer|layers)\.(\d+)\.(?:layernorm_after|norm2)\.", r"visual.trunk.blocks.\1.norm2."),
)


def renamed(name: str, table: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in table:
        name = re.sub("^" + pattern, replacement, name)
    return name


def joined(weights: dict[str, Tensor], part: str) -> Tensor:
    """Concatenate queries, keys and values along the first axis."""
    return torch.cat([weights.pop(part.replace("q_proj", f"{letter}_proj")) for letter in "qkv"])


def siglip_in_open_clip(model: SiglipModel) -> dict[str, Tensor]:
    theirs = {name: value.detach().clone() for name, value in model.state_dict().items()}
    ours: dict[str, Tensor] = {}
    for name in [name for name in theirs if ".q_proj." in name]:
        both = renamed(name, SIGLIP_NAMES).replace("self_attn", "attn")
        is_vision = both.startswith("visual.")
        both = both.replace("q_proj.", "qkv.") if is_vision else both.replace("q_proj.", "in_proj_")
        ours[both] = joined(theirs, name)
    width = model.config.vision_config.hidden_size
    for kind in ("weight", "bias"):
        packed = theirs.pop(f"vision_model.head.attention.in_proj_{kind}")
        ours[f"visual.trunk.attn_pool.q.{kind}"] = packed[:width].clone()
        ours[f"visual.trunk.attn_pool.kv.{kind}"] = packed[width:].clone()
    ours |= {renamed(name, SIGLIP_NAMES): value for name, value in theirs.items()}
    ours["visual.trunk.pos_embed"] = ours["visual.trunk.pos_embed"][None].clone()
    return ours


def save_open_clip_siglip(folder: Path, model: SiglipModel, name: str) -> Path:
    vision, text = model.config.vision_config, model.config.text_config
    tanh = {"act_kwargs": {"approximate": "tanh"}} if text.hidden_act != "gelu" else {}
    config = {
        "model_cfg": {
            "embed_dim": text.projection_size,
            "init_logit_bias": -10,
            "custom_text": True,
            "vision_cfg": {
                "image_size": vision.image_size,
                "timm_model_name": name,
                "timm_model_pretrained": False,
                "timm_pool": "map",
                "timm_proj": "none",
            },
            "text_cfg": {
                "context_length": text.max_position_embeddings,
                "vocab_size": text.vocab_size,
                "hf_tokenizer_name": "somebody/something",
                "tokenizer_kwargs": {"clean": "canonicalize"},
                "width": text.hidden_size,
                "heads": text.num_attention_heads,
                "layers": text.num_hidden_layers,
                "no_causal_mask": True,
                "proj_bias": True,
                "pool_type": "last",
                "norm_kwargs": {"eps": 1e-6},
            }
            | tanh,
        },
        "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"},
    }
    save_file(siglip_in_open_clip(model), folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    word_pieces().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "</s>", "eos_token": "</s>"}))
    return folder


VIT = {"hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 12, "image_size": 28, "patch_size": 7}
BERT = {
    "vocab_size": 60,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_attention_heads": 1,
    "max_position_embeddings": 40,
}


class TinyBiomed(nn.Module):
    """BiomedCLIP's kind: a ViT's class token through a matrix, a BERT's [CLS] through two."""

    def __init__(self, *, depth: int = 3, project: str = "mlp", vit: dict | None = None, bert: dict | None = None):
        super().__init__()
        vit, bert = (
            {**VIT, "num_hidden_layers": depth, **(vit or {})},
            {**BERT, "num_hidden_layers": depth, **(bert or {})},
        )
        self.vision = ViTModel(ViTConfig(**vit, layer_norm_eps=1e-6), add_pooling_layer=False)
        self.text = BertModel(BertConfig(**bert), add_pooling_layer=False)
        output, width = 2 * vit["hidden_size"] // 3, bert["hidden_size"]
        hidden = (width + output) // 2
        self.head = nn.Linear(vit["hidden_size"], output, bias=False)
        two = nn.Sequential(nn.Linear(width, hidden, bias=False), nn.GELU(), nn.Linear(hidden, output, bias=False))
        self.project = two if project == "mlp" else nn.Linear(width, output, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(4.45))

    def images(self, pixels: Tensor) -> Tensor:
        return self.head(self.vision(pixels).last_hidden_state[:, 0])

    def sentences(self, ids: Tensor) -> Tensor:
        return self.project(self.text(ids, attention_mask=(ids != 0).long()).last_hidden_state[:, 0])


def tiny_biomed(**options: object) -> TinyBiomed:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return perturbed(TinyBiomed(**options))


def true_biomed() -> dict[str, Tensor]:
    """Random weights of BiomedCLIP's shapes, which are those of the base models of `transformers`."""
    vit = {"hidden_size": 768, "intermediate_size": 3072, "image_size": 224, "patch_size": 16}
    bert = {"vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072}
    long = {"num_attention_heads": 12, "max_position_embeddings": 512}
    return biomed_in_open_clip(TinyBiomed(depth=12, vit=vit, bert=bert | long))


def biomed_in_open_clip(model: TinyBiomed) -> dict[str, Tensor]:
    theirs = {name: value.detach().clone() for name, value in model.vision.state_dict().items()}
    ours: dict[str, Tensor] = {}
    for i, layer in enumerate(model.vision.layers):
        attention, mlp = layer.attention, layer.mlp
        block = f"visual.trunk.blocks.{i}"
        for kind in ("weight", "bias"):
            parts = [getattr(getattr(attention, f"{letter}_proj"), kind) for letter in "qkv"]
            ours[f"{block}.attn.qkv.{kind}"] = torch.cat(parts)
            ours[f"{block}.attn.proj.{kind}"] = getattr(attention.o_proj, kind)
            ours[f"{block}.mlp.fc1.{kind}"] = getattr(mlp.fc1, kind)
            ours[f"{block}.mlp.fc2.{kind}"] = getattr(mlp.fc2, kind)
    moved = {renamed(name, VIT_NAMES): value for name, value in theirs.items()}
    ours |= {name: value for name, value in moved.items() if name.startswith("visual.")}
    ours |= {f"text.transformer.{name}": value for name, value in model.text.state_dict().items()}
    ours |= {f"text.proj.{name}": value for name, value in model.project.state_dict().items()}
    ours |= {"visual.head.proj.weight": model.head.weight, "logit_scale": model.logit_scale}
    return {name: value.detach().clone().contiguous() for name, value in ours.items()}


def bert_words() -> BertTokenizer:
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = ["a", "photo", "of", "cat", "dog", "small", "chest", "x", "ray", "-", ".", ",", "##s", "'", "it"]
    return BertTokenizer(vocab={word: i for i, word in enumerate([*marks, *words])})


def save_biomed(folder: Path, model: TinyBiomed, **text: object) -> Path:
    config = {
        "model_cfg": {
            "embed_dim": 32,
            "vision_cfg": {
                "timm_model_name": "vit_base_patch7_28",
                "timm_model_pretrained": False,
                "timm_pool": "",
                "timm_proj": "linear",
                "image_size": 28,
            },
            "text_cfg": {
                "hf_model_name": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",
                "hf_tokenizer_name": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",
                "hf_proj_type": "mlp",
                "hf_pooler_type": "cls_last_hidden_state_pooler",
                "context_length": 32,
            }
            | text,
        },
        "preprocess_cfg": {
            "mean": [0.48145466, 0.4578275, 0.40821073],
            "std": [0.26862954, 0.26130258, 0.27577711],
        },
    }
    save_file(biomed_in_open_clip(model), folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    bert_words().save_pretrained(folder)
    return folder
