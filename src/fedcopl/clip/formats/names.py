"""Names under which each kind of checkpoint stores the weights of our towers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_WeightsByName = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class TowerNames:
    """Names of one tower's weights in a kind of checkpoint.

    A weight with several names is stored in parts, concatenated along the first axis.
    """

    outside: _WeightsByName
    block: str
    inside: _WeightsByName
    turned: frozenset[str] = frozenset()  # our names of weights that are stored transposed

    def of(self, ours: str) -> tuple[str, ...]:
        match = re.fullmatch(r"blocks\.(\d+)\.(.+)", ours)
        if not match:
            return self.outside[ours]
        return tuple(f"{self.block}.{match[1]}.{name}" for name in self.inside[match[2]])

    def one(self, ours: str) -> str:
        (theirs,) = self.of(ours)
        return theirs


def _both(pairs: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Expand names of modules to those of their weights and biases."""
    return {f"{ours}.{kind}": (f"{theirs}.{kind}",) for ours, theirs in pairs.items() for kind in ("weight", "bias")}


_HUGGING_FACE_BLOCK = _both(
    {
        "norm_attention": "layer_norm1",
        "out": "self_attn.out_proj",
        "norm_mlp": "layer_norm2",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    }
) | {f"query_key_value.{kind}": tuple(f"self_attn.{part}_proj.{kind}" for part in "qkv") for kind in ("weight", "bias")}
HUGGING_FACE_VISION = TowerNames(
    _both(
        {
            "patches": "vision_model.embeddings.patch_embedding",
            "norm_first": "vision_model.pre_layrnorm",
            "norm_last": "vision_model.post_layernorm",
            "project": "visual_projection",
        }
    )
    | {
        "class_token": ("vision_model.embeddings.class_embedding",),
        "positions": ("vision_model.embeddings.position_embedding.weight",),
    },
    "vision_model.encoder.layers",
    _HUGGING_FACE_BLOCK,
)
HUGGING_FACE_TEXT = TowerNames(
    _both({"norm_last": "text_model.final_layer_norm", "project": "text_projection"})
    | {
        "embedding.weight": ("text_model.embeddings.token_embedding.weight",),
        "positions": ("text_model.embeddings.position_embedding.weight",),
    },
    "text_model.encoder.layers",
    _HUGGING_FACE_BLOCK,
)
_OPENAI_BLOCK = _both(
    {
        "norm_attention": "ln_1",
        "out": "attn.out_proj",
        "norm_mlp": "ln_2",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    }
) | {f"query_key_value.{kind}": (f"attn.in_proj_{kind}",) for kind in ("weight", "bias")}
OPENAI_VISION = TowerNames(
    _both({"patches": "visual.conv1", "norm_first": "visual.ln_pre", "norm_last": "visual.ln_post"})
    | {
        "class_token": ("visual.class_embedding",),
        "positions": ("visual.positional_embedding",),
        "project.weight": ("visual.proj",),
    },
    "visual.transformer.resblocks",
    _OPENAI_BLOCK,
    turned=frozenset({"project.weight"}),
)
OPENAI_TEXT = TowerNames(
    _both({"norm_last": "ln_final"})
    | {
        "embedding.weight": ("token_embedding.weight",),
        "positions": ("positional_embedding",),
        "project.weight": ("text_projection",),
    },
    "transformer.resblocks",
    _OPENAI_BLOCK,
    turned=frozenset({"project.weight"}),
)
SIGLIP_VISION = TowerNames(
    _both(
        {
            "patches": "vision_model.embeddings.patch_embedding",
            "norm_last": "vision_model.post_layernorm",
            "pool.out": "vision_model.head.attention.out_proj",
            "pool.norm_mlp": "vision_model.head.layernorm",
            "pool.up": "vision_model.head.mlp.fc1",
            "pool.down": "vision_model.head.mlp.fc2",
        }
    )
    | {
        "positions": ("vision_model.embeddings.position_embedding.weight",),
        "pool.probe": ("vision_model.head.probe",),
        "pool.query_key_value.weight": ("vision_model.head.attention.in_proj_weight",),
        "pool.query_key_value.bias": ("vision_model.head.attention.in_proj_bias",),
    },
    "vision_model.encoder.layers",
    _HUGGING_FACE_BLOCK,
)
SIGLIP_TEXT = TowerNames(
    _both({"norm_last": "text_model.final_layer_norm", "project": "text_model.head"})
    | {
        "embedding.weight": ("text_model.embeddings.token_embedding.weight",),
        "positions": ("text_model.embeddings.position_embedding.weight",),
    },
    "text_model.encoder.layers",
    _HUGGING_FACE_BLOCK,
)
_TIMM_BLOCK = _both(
    {
        "norm_attention": "norm1",
        "query_key_value": "attn.qkv",
        "out": "attn.proj",
        "norm_mlp": "norm2",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    }
)
TIMM_CLASS_VISION = TowerNames(
    _both({"patches": "visual.trunk.patch_embed.proj", "norm_last": "visual.trunk.norm"})
    | {
        "class_token": ("visual.trunk.cls_token",),
        "positions": ("visual.trunk.pos_embed",),
        "project.weight": ("visual.head.proj.weight",),
    },
    "visual.trunk.blocks",
    _TIMM_BLOCK,
)
TIMM_POOLED_VISION = TowerNames(
    _both(
        {
            "patches": "visual.trunk.patch_embed.proj",
            "norm_last": "visual.trunk.norm",
            "pool.out": "visual.trunk.attn_pool.proj",
            "pool.norm_mlp": "visual.trunk.attn_pool.norm",
            "pool.up": "visual.trunk.attn_pool.mlp.fc1",
            "pool.down": "visual.trunk.attn_pool.mlp.fc2",
        }
    )
    | {
        "positions": ("visual.trunk.pos_embed",),
        "pool.probe": ("visual.trunk.attn_pool.latent",),
        **{
            f"pool.query_key_value.{kind}": tuple(f"visual.trunk.attn_pool.{part}.{kind}" for part in ("q", "kv"))
            for kind in ("weight", "bias")
        },
    },
    "visual.trunk.blocks",
    _TIMM_BLOCK,
)
OPEN_CLIP_TEXT = TowerNames(
    _both({"norm_last": "text.ln_final", "project": "text.text_projection"})
    | {"embedding.weight": ("text.token_embedding.weight",), "positions": ("text.positional_embedding",)},
    "text.transformer.resblocks",
    _OPENAI_BLOCK,
)
BERT_TEXT = TowerNames(
    _both({"norm_first": "text.transformer.embeddings.LayerNorm"})
    | {
        "embedding.weight": ("text.transformer.embeddings.word_embeddings.weight",),
        "positions": ("text.transformer.embeddings.position_embeddings.weight",),
        "kinds": ("text.transformer.embeddings.token_type_embeddings.weight",),
        "project.weight": ("text.proj.weight",),  # one matrix, or two with a GELU between them
        "project.0.weight": ("text.proj.0.weight",),
        "project.2.weight": ("text.proj.2.weight",),
    },
    "text.transformer.encoder.layer",
    _both(
        {
            "norm_attention": "attention.output.LayerNorm",
            "out": "attention.output.dense",
            "norm_mlp": "output.LayerNorm",
            "up": "intermediate.dense",
            "down": "output.dense",
        }
    )
    | {
        f"query_key_value.{kind}": tuple(f"attention.self.{part}.{kind}" for part in ("query", "key", "value"))
        for kind in ("weight", "bias")
    },
)
SCALE = "logit_scale"
BIAS = "logit_bias"  # of SigLIP's sigmoid; equal for all classes, so the softmax does not depend on it
# Tables that older versions stored with the weights; all of them follow from the sizes.
HARMLESS = re.compile(
    r"(text_model|vision_model|text\.transformer)\.embeddings\.position_ids|attn_mask|input_resolution|context_length|vocab_size"
    r"|.+\.num_batches_tracked"
)
