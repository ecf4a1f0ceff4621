"""The tokenizer of `glyph-clip`: byte-pair encoding as in CLIP, with a small vocabulary.

Any text can be tokenised (all bytes are in the vocabulary); the words of the captions are single tokens.
"""

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

START, END, WORD_END = "<|startoftext|>", "<|endoftext|>", "</w>"
WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""


def build_tokenizer(captions: Iterable[str]) -> Tokenizer:
    merges = [tuple(pair) for pair in json.loads(_trained(captions).to_str())["model"]["merges"]]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(byte + WORD_END for byte in alphabet), *(a + b for a, b in merges), START, END]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = _with_clip_splitting(models.BPE(vocabulary, merges, unk_token=END, end_of_word_suffix=WORD_END))
    tokenizer.add_special_tokens([START, END])
    tokenizer.post_processor = processors.RobertaProcessing(
        (END, vocabulary[END]), (START, vocabulary[START]), trim_offsets=False, add_prefix_space=False
    )
    return tokenizer


def _trained(captions: Iterable[str]) -> Tokenizer:
    tokenizer = _with_clip_splitting(models.BPE(end_of_word_suffix=WORD_END))
    trainer = trainers.BpeTrainer(
        vocab_size=5000,  # more than the possible merges, so that every word of the captions becomes one token
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix=WORD_END,
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    return tokenizer


def _with_clip_splitting(model: models.BPE) -> Tokenizer:
    """Return a tokenizer with CLIP's normalisation, CLIP's splitting into words, and a BPE model."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer
