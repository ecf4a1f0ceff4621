"""Checkpoints of known models with random weights, in the publisher's architecture and layout."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

from fedcopl.clip.known_models import KnownModel
from published_configs import CONFIGS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from clip.tiny_clip import in_openai_layout
from clip.tiny_open_clip import bert_words, true_biomed
from clip.tiny_siglip import word_pieces


def checkpoint(model: KnownModel, folder: Path) -> Path:
    """Write a checkpoint of a model with random weights; return its folder or file."""
    config = CONFIGS[model.name]
    if model.layout == "hugging face":
        kind = config["model_type"]
        random_model = CLIPModel(CLIPConfig(**config)) if kind == "clip" else SiglipModel(SiglipConfig(**config))
        random_model.save_pretrained(folder)
        if kind == "siglip":
            word_pieces().save(str(folder / "tokenizer.json"))
        return folder
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    weights = true_biomed() if "hf_model_name" in config["text_cfg"] else in_openai_layout(plain(config))
    save_file(weights, folder / "open_clip_model.safetensors")
    bert_words().save_pretrained(folder)
    return folder if model.layout == "open_clip" else folder / "open_clip_model.safetensors"


def plain(config: Mapping[str, Any]) -> CLIPModel:
    """Return the `transformers` model of an open_clip configuration of a plain CLIP."""
    vision, text = config["vision_cfg"], config["text_cfg"]
    towers = {
        name: {
            "hidden_size": tower["width"],
            "intermediate_size": 4 * tower["width"],
            "num_hidden_layers": tower["layers"],
            "num_attention_heads": tower["width"] // 64,
        }
        for name, tower in (("vision_config", vision), ("text_config", text))
    }
    towers["vision_config"] |= {"image_size": vision["image_size"], "patch_size": vision["patch_size"]}
    return CLIPModel(CLIPConfig(**towers, projection_dim=config["embed_dim"]))
