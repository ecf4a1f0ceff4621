"""Tokenization of sentences, with the tokenizer of a checkpoint or with CLIP's own."""

import json
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import instant_clip_tokenizer
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from ..errors import ModelError
from .formats.files import first_sentence, read_json

_START, _END, _WORD_END = "<|startoftext|>", "<|endoftext|>", "</w>"
_MARKERS = re.compile(f"({re.escape(_START)}|{re.escape(_END)})")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_COMPOSED_LOWER = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
_WORDS = _MARKERS.pattern + r"|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@dataclass(frozen=True)
class Tokenizer:
    """Converts sentences to rows of token ids, from the start token, if any, to the end token."""

    rows: Callable[[Sequence[str]], list[list[int]]]
    start_id: int | None  # SigLIP's sentences begin with their first word
    end_id: int
    pad_id: int
    vocabulary: int

    def words(self, text: str) -> list[int]:
        """Return the ids of a text without start and end tokens."""
        return self.rows([text])[0][0 if self.start_id is None else 1 : -1]


def canonicalize_text(text: str) -> str:
    """Clean a text as in SigLIP's training: lower case, no punctuation, single spaces."""
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def read_tokenizer(folder: Path, clean: Callable[[str], str] | None = None) -> Tokenizer | None:
    """Read the tokenizer of a Hugging Face folder, or return None if there is none; `clean` is applied to each text."""
    file = next((folder / name for name in ("tokenizer.json", "vocab.json") if (folder / name).is_file()), None)
    if file is None:
        return None
    try:
        inner = tokenizers.Tokenizer.from_file(str(file)) if file.name == "tokenizer.json" else _byte_pairs(file)
    except ModelError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise ModelError(f"{file}: cannot be read as a tokenizer: {first_sentence(error)}") from error
    inner.no_padding()
    inner.no_truncation()
    markers = inner.encode("").ids
    if len(markers) not in (1, 2):
        raise ModelError(f"{file}: adds {len(markers)} tokens to a sentence, instead of a start and an end token")
    start, end = [None, *markers][-2:]
    pad = _special_token(folder, "pad_token")
    pad_id = end if pad is None else inner.token_to_id(pad)
    if pad_id is None or end is None:
        raise ModelError(f"{file}: the padding token {pad!r} is not in the vocabulary")

    def rows(sentences: Sequence[str]) -> list[list[int]]:
        cleaned = list(sentences) if clean is None else [clean(sentence) for sentence in sentences]
        return [encoding.ids for encoding in inner.encode_batch(cleaned)]

    return Tokenizer(rows, start, end, pad_id, inner.get_vocab_size())


def _byte_pairs(file: Path) -> tokenizers.Tokenizer:
    """Build CLIP's byte-pair encoding from vocab.json and merges.txt of an older folder, as `transformers` does."""
    merges = file.with_name("merges.txt")
    if not merges.is_file():
        raise ModelError(f"{merges}: is missing, and {file.name} needs it")
    pairs = []
    for line in merges.read_text(encoding="utf-8").split("\n"):
        if line.strip() and not line.startswith("#version"):
            first, second = line.split()
            pairs.append((first, second))
    start, end = _special_token(file.parent, "bos_token") or _START, _special_token(file.parent, "eos_token") or _END
    vocabulary = json.loads(file.read_text(encoding="utf-8"))
    model = models.BPE(vocabulary, pairs, unk_token=end, end_of_word_suffix=_WORD_END)
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(tokenizers.Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(tokenizers.Regex(_WORDS), behavior="removed", invert=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    inner.add_special_tokens([start, end])
    ids = inner.get_vocab()
    inner.post_processor = processors.RobertaProcessing((end, ids[end]), (start, ids[start]), trim_offsets=False)
    return inner


def _special_token(folder: Path, role: str) -> str | None:
    """Return the special token that the folder's configs give for a role such as `pad_token`, or None."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        token = read_json(file).get(role) if file.is_file() else None
        if token is not None:
            return str(token.get("content") if isinstance(token, dict) else token)
    return None


_load_clip_vocabulary = cache(instant_clip_tokenizer.Tokenizer)


def clip_tokenizer(pad_id: int | None = None) -> Tokenizer:
    """Return the tokenizer of OpenAI's models, for checkpoints without one; pads with the end token by default."""
    inner = _load_clip_vocabulary()
    start, end = inner.start_of_text(), inner.end_of_text()
    markers = {_START: start, _END: end}

    def encode(sentence: str) -> list[int]:
        ids = [start]
        for piece in _MARKERS.split(sentence):
            # Unicode is normalised as in `transformers`; Python's tables differ. `instant-clip-tokenizer` would treat
            # two strings as special tokens; a space inside them prevents it and gives the ids of plain text.
            plain = _COMPOSED_LOWER.normalize_str(piece).replace("<start_of_text>", "<start _of_text>")
            plain = plain.replace("<end_of_text>", "<end _of_text>")
            ids += [markers[piece]] if piece in markers else inner.encode(plain)
        return [*ids, end]

    return Tokenizer(
        lambda sentences: [encode(sentence) for sentence in sentences],
        start,
        end,
        end if pad_id is None else pad_id,
        end + 1,
    )
