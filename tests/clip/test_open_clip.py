"""open_clip's folders of SigLIPs and of BiomedCLIP's kind, against `transformers`."""

import json

import pytest
import torch
import torch.nn.functional as F

from clip.test_siglip import CLOSE, SENTENCES, assert_agrees
from clip.tiny_open_clip import bert_words, save_biomed, save_open_clip_siglip, tiny_biomed
from clip.tiny_siglip import tiny_siglip
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.errors import ModelError

WIDE = {"hidden_size": 48, "num_attention_heads": 12}


@pytest.mark.parametrize(
    ("name", "vision", "text"),
    [
        ("vit_base_patch7_siglip_28", {"hidden_act": "gelu"}, {"hidden_act": "gelu"}),
        ("vit_so400m_patch16_siglip_256", {"num_attention_heads": 16, "hidden_act": "gelu_pytorch_tanh"}, {}),
    ],
)
def test_a_siglip_agrees(name, vision, text, tmp_path):
    model = tiny_siglip(vision=WIDE | vision, text=text | {"projection_size": 48})
    clip = load_clip(save_open_clip_siglip(tmp_path, model, name))
    assert_agrees(clip, model)
    assert clip.preprocess.squash
    assert clip.tokenize(["a_cat."]).tolist() == clip.tokenize(["A cat"]).tolist()


@pytest.mark.parametrize("project", ["mlp", "linear"])
def test_a_vit_with_a_bert_agrees(project, tmp_path):
    model = tiny_biomed(project=project)
    clip = load_clip(save_biomed(tmp_path, model))
    pixels = torch.randn(3, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    ids = clip.tokenize(SENTENCES)
    with torch.no_grad():
        expected = [F.normalize(x) for x in (model.images(pixels), model.sentences(ids))]
    assert (F.normalize(clip.encode_image(pixels)) - expected[0]).abs().max() <= CLOSE
    assert (F.normalize(clip.encode_text(ids)) - expected[1]).abs().max() <= CLOSE
    assert ids.tolist() == bert_words()(SENTENCES, padding="max_length", max_length=32)["input_ids"]
    assert (clip.context_length, clip.tokenizer.start_id, clip.tokenizer.end_id, clip.tokenizer.pad_id) == (32, 2, 3, 0)


def test_a_context_enters_a_bert_after_its_first_token_and_learns(tmp_path):
    """Against `transformers`' BERT, given embeddings instead of tokens; gradients too."""
    model = tiny_biomed().double()
    clip = load_clip(save_biomed(tmp_path, model)).double()
    sentences = clip.sentences(["cat.", "small dog."])
    context = torch.randn(4, 64, dtype=torch.float64)
    ours, theirs = context.clone().requires_grad_(), context.clone().requires_grad_()
    words = model.text.embeddings.word_embeddings(sentences.rest)
    mixed = torch.cat([words[:, :1], theirs.expand(2, -1, -1), words[:, 1:]], dim=1)
    visible = torch.arange(mixed.shape[1]) <= (sentences.end + 4)[:, None]
    output = model.text(inputs_embeds=mixed, attention_mask=visible.long()).last_hidden_state[:, 0]
    expected, found = model.project(output), clip.text(sentences, ours)
    weigh = torch.randn(2, 32, dtype=torch.float64)
    (expected * weigh).sum().backward()
    (found * weigh).sum().backward()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("section", "setting", "value", "message"),
    [
        ("vision_cfg", "timm_model_name", "eva02_base_patch16_clip_224", "only timm's plain vision transformers"),
        ("vision_cfg", "timm_model_name", "fastvit_mci2", "only timm's plain vision transformers"),
        ("vision_cfg", "timm_pool", "avg", "only 'map' with 'none' (SigLIP) and 'token' with 'linear'"),
        ("text_cfg", "hf_pooler_type", "mean_pooler", "only 'cls_last_hidden_state_pooler' is supported"),
        ("text_cfg", "embed_cls", True, "text_cfg.embed_cls is True, which is not supported"),
        ("text_cfg", "context_length", "77", "context_length must be a positive number"),
    ],
)
def test_an_unsupported_setting_is_refused_by_name(section, setting, value, message, tmp_path):
    save_biomed(tmp_path, tiny_biomed(depth=1))
    file = tmp_path / "open_clip_config.json"
    config = json.loads(file.read_text())
    config["model_cfg"][section][setting] = value
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError) as refused:
        load_clip(tmp_path)
    assert message in str(refused.value)


def test_a_siglip_with_causal_attention_is_refused(tmp_path):
    save_open_clip_siglip(tmp_path, tiny_siglip(vision=WIDE, text={"projection_size": 48}), "vit_base_patch7_siglip_28")
    file = tmp_path / "open_clip_config.json"
    config = json.loads(file.read_text())
    del config["model_cfg"]["text_cfg"]["no_causal_mask"]
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"text_cfg\.no_causal_mask is None; a SigLIP has True"):
        load_clip(tmp_path)
