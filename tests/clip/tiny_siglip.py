"""Small random SigLIPs made with `transformers`, with a tokenizer that SentencePiece has learnt on the spot."""

import io
import json
from functools import cache
from pathlib import Path

import sentencepiece
import torch
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram
from transformers import Siglip2Tokenizer, SiglipConfig, SiglipModel, SiglipTokenizer
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from clip.tiny_clip import perturbed

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
    "vocab_size": 120,
    "max_position_embeddings": 40,
}
LEARNT = [
    "a photo of a cat and a very small dog",
    "a photo of the number three four five six seven eight nine ten",
    "it s a naive cafe with quick brown foxes jumping over lazy dogs",
    "an x ray of the chest of a patient with pneumonia and zero others",
]


def tiny_siglip(*, vision: dict | None = None, text: dict | None = None, seed: int = 0) -> SiglipModel:
    config = SiglipConfig(vision_config=VISION | (vision or {}), text_config=TEXT | (text or {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = perturbed(SiglipModel(config), seed)
    with torch.no_grad():
        model.logit_scale.fill_(4.7)
        model.logit_bias.fill_(-16.5)
    return model


def save_siglip(folder: Path, model: SiglipModel, **options: object) -> Path:
    """Write all files of a Hugging Face repository of a SigLIP."""
    model.save_pretrained(folder, **options)
    side = model.config.vision_config.image_size
    SiglipImageProcessorPil(size={"height": side, "width": side}).save_pretrained(folder)
    word_pieces().save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "SiglipTokenizer", "pad_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@cache
def _learnt() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LEARNT),
        model_writer=model,
        vocab_size=90,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return model.getvalue()


def reference_tokenizer(folder: Path) -> SiglipTokenizer:
    """The tokenizer of `transformers`, which runs SentencePiece."""
    (folder / "spiece.model").write_bytes(_learnt())
    return SiglipTokenizer(str(folder / "spiece.model"))


def word_pieces() -> Tokenizer:
    """The same pieces as a tokenizer.json."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=_learnt())
    scored = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(len(pieces))]
    tokenizer = Tokenizer(Unigram(scored, unk_id=2))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(["</s>", "<unk>", "<pad>"])
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def gemma_pieces() -> Siglip2Tokenizer:
    """SigLIP 2's kind: byte pairs over letters, which `transformers` lower-cases."""
    letters = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *"abcdefghijklmnopqrstuvwxyz.,!'0123456789"]
    merges = [("p", "h"), ("o", "t"), ("ph", "ot"), ("phot", "o"), ("c", "a"), ("ca", "t"), ("▁", "a")]
    vocabulary = {piece: i for i, piece in enumerate([*letters, *(a + b for a, b in merges)])}
    tokenizer = Siglip2Tokenizer(vocab=vocabulary, merges=merges, padding_side="right", model_max_length=64)
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 1)])
    return tokenizer


def gemma_file(folder: Path) -> None:
    """The repositories' tokenizer.json does not lower-case; the class above does."""
    inner = Tokenizer.from_str(gemma_pieces()._tokenizer.to_str())
    assert isinstance(inner.model, BPE)
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "GemmaTokenizer", "pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
