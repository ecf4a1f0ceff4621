"""The text transformers: CLIP's causal one, and two that look both ways, SigLIP's and BERT.

Every shortcut here is algebra, not approximation:

* causal attention never looks ahead, so the tokens that all classes share (start, context, common words) are run once;
* only one token of the last block is read: CLIP's end of text, SigLIP's last, BERT's first.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ModelError
from .blocks import Block, PostNormBlock, TowerShape, concat_shared, take_row


@dataclass(frozen=True)
class Sentences:
    """Tokenised sentences, split into the beginning they all share and what follows in each.

    For a causal tower both keep at least one token: the shared part its start token, each rest its end token. For the
    others nothing is shared: what follows a token changes what is made of it.
    """

    shared: Tensor  # (P,) token ids, the start token first
    rest: Tensor  # (C, S) token ids, padded after the end token
    end: Tensor  # (C,) position of the end token in `rest`

    def to(self, device: torch.device) -> "Sentences":
        return Sentences(self.shared.to(device), self.rest.to(device), self.end.to(device))


def split_sentences(rows: Sequence[Sequence[int]]) -> Sentences:
    """Find the shared beginning of token rows that each run from start token to end token."""
    shortest = min(len(row) for row in rows)
    shared = next(
        (i for i in range(1, shortest - 1) if len({row[i] for row in rows}) > 1),
        max(shortest - 1, 1),
    )
    longest = max(len(row) for row in rows) - shared
    rest = [list(row[shared:]) + [row[-1]] * (longest - len(row) + shared) for row in rows]
    end = [len(row) - shared - 1 for row in rows]
    return Sentences(torch.tensor(rows[0][:shared]), torch.tensor(rest), torch.tensor(end))


def whole_sentences(rows: Sequence[Sequence[int]], pad_id: int, length: int = 0) -> Sentences:
    """Rows that share nothing, padded to the longest or to `length`; padding that a row has already is not counted."""
    ends = [max((spot for spot, token in enumerate(row) if token != pad_id), default=0) for row in rows]
    longest = max(length, *(end + 1 for end in ends))
    rest = [list(row[: end + 1]) + [pad_id] * (longest - end - 1) for row, end in zip(rows, ends, strict=True)]
    return Sentences(torch.empty(0, dtype=torch.long), torch.tensor(rest), torch.tensor(ends))


class TextTower(nn.Module, ABC):
    """What all of them have: tokens and positions as vectors, blocks, a last norm, a projection."""

    block: type[Block] = Block

    def __init__(self, shape: TowerShape, *, vocabulary: int, positions: int, output: int):
        super().__init__()
        self.shape, self.output = shape, output
        self.reads = positions  # tokens of a sentence, context included
        self.embedding = nn.Embedding(vocabulary, shape.width)
        self.positions = nn.Parameter(torch.empty(positions, shape.width))
        self.blocks = nn.ModuleList(self.block(shape) for _ in range(shape.depth))

    @abstractmethod
    def forward(self, sentences: Sentences, context: Tensor | None = None) -> Tensor:
        """Features (C, output), not normalised. `context` (m, width) goes before the words, after a start token."""

    def refuse_long(self, length: int) -> None:
        if length > self.reads:
            raise ModelError(f"a class sentence takes {length} tokens; this model reads at most {self.reads}")


class CausalText(TextTower):
    """CLIP's causal text transformer over sentences that share their beginning."""

    def __init__(self, shape: TowerShape, *, vocabulary: int, positions: int, output: int):
        super().__init__(shape, vocabulary=vocabulary, positions=positions, output=output)
        self.norm_last = nn.LayerNorm(shape.width, shape.epsilon)
        self.project = nn.Linear(shape.width, output, bias=False)

    def forward(self, sentences: Sentences, context: Tensor | None = None) -> Tensor:
        shared, rest = self._embed(sentences, context)
        mask = _causal_mask(shared.shape[1], rest.shape[1], rest.device)
        *before, last = cast(Sequence[Block], self.blocks)
        for block in before:
            shared_attended, attended = _causal_attention(block, shared, rest, mask)
            shared, rest = block.finish(shared, shared_attended), block.finish(rest, attended)
        features: Tensor = self.project(self.norm_last(_causal_end(last, shared, rest, mask, sentences.end)))
        return features

    def _embed(self, sentences: Sentences, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """The shared beginning with the context, (1, S, width), and what follows in each class, (C, R, width)."""
        start = self.embedding(sentences.shared)
        shared = start if context is None else torch.cat([start[:1], context, start[1:]])
        length = len(shared) + sentences.rest.shape[1]
        self.refuse_long(length)
        rest = self.embedding(sentences.rest) + self.positions[len(shared) : length]
        return (shared + self.positions[: len(shared)])[None], rest


def _causal_mask(shared: int, rest: int, device: torch.device) -> Tensor:
    """Which keys each token of the rest attends to, (rest, shared + rest): the shared beginning, and up to itself."""
    everything = torch.ones(rest, shared, dtype=torch.bool, device=device)
    return torch.cat([everything, torch.ones(rest, rest, dtype=torch.bool, device=device).tril()], dim=1)


def _causal_attention(block: Block, shared: Tensor, rest: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attention output of the shared beginning and of the rests; keys and values are freed before the MLP runs."""
    shared_query, shared_key, shared_value = block.queries_keys_values(shared)
    query, key, value = block.queries_keys_values(rest)
    key, value = concat_shared(shared_key, key, first=True), concat_shared(shared_value, value, first=True)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    shared_attended = F.scaled_dot_product_attention(shared_query, shared_key, shared_value, is_causal=True)
    return shared_attended, attended


def _causal_end(block: Block, shared: Tensor, rest: Tensor, mask: Tensor, end: Tensor) -> Tensor:
    """The last block's output at each sentence's end token, (C, width)."""
    shared_key, shared_value = block.keys_values(shared)
    query, key, value = block.query_keys_values_of_row(rest, end)
    key, value = concat_shared(shared_key, key, first=True), concat_shared(shared_value, value, first=True)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[end][:, None, None])
    return block.finish(take_row(rest, end), attended)[:, 0]


class PaddedText(TextTower):
    """SigLIP's: every token sees every other, padding too, and the last one is read, which mostly is padding."""

    def __init__(self, shape: TowerShape, *, vocabulary: int, positions: int, output: int):
        super().__init__(shape, vocabulary=vocabulary, positions=positions, output=output)
        self.norm_last = nn.LayerNorm(shape.width, shape.epsilon)
        self.project = nn.Linear(shape.width, output)

    def forward(self, sentences: Sentences, context: Tensor | None = None) -> Tensor:
        """A sentence fills all positions; a context pushes its last paddings out."""
        ahead = 0 if context is None else len(context)
        self.refuse_long(int(sentences.end.max()) + 1 + ahead)
        tokens = _with_context(self.embedding(sentences.rest[:, : self.reads - ahead]), context, 0) + self.positions
        row = torch.full((len(tokens),), self.reads - 1, device=tokens.device)
        features: Tensor = self.project(self.norm_last(_bidirectional(self.blocks, tokens, None, row)))
        return features


class BertText(TextTower):
    """BERT: padding is hidden, and the first token is read, [CLS], which a context follows."""

    block = PostNormBlock

    def __init__(
        self, shape: TowerShape, *, vocabulary: int, positions: int, output: int, kinds: int, hidden_output: int | None
    ):
        super().__init__(shape, vocabulary=vocabulary, positions=positions, output=output)
        self.kinds = nn.Parameter(torch.empty(kinds, shape.width))  # of sentences; all of ours are of the first
        self.norm_first = nn.LayerNorm(shape.width, shape.epsilon)
        self.project = _projection(shape.width, hidden_output, output)

    def forward(self, sentences: Sentences, context: Tensor | None = None) -> Tensor:
        tokens = _with_context(self.embedding(sentences.rest), context, 1)
        length, ahead = tokens.shape[1], 0 if context is None else len(context)
        self.refuse_long(length)
        tokens = self.norm_first(tokens + self.positions[:length] + self.kinds[0])
        visible = torch.arange(length, device=tokens.device) <= (sentences.end + ahead)[:, None]
        row = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
        features: Tensor = self.project(_bidirectional(self.blocks, tokens, visible[:, None, None], row))
        return features


def _projection(width: int, hidden: int | None, output: int) -> nn.Module:
    if hidden is None:
        return nn.Linear(width, output, bias=False)
    return nn.Sequential(nn.Linear(width, hidden, bias=False), nn.GELU(), nn.Linear(hidden, output, bias=False))


def _with_context(words: Tensor, context: Tensor | None, after: int) -> Tensor:
    """(C, S, width) with the context after so many tokens of each sentence."""
    if context is None:
        return words
    return torch.cat([words[:, :after], context.expand(len(words), -1, -1), words[:, after:]], dim=1)


def _bidirectional(blocks: nn.ModuleList, tokens: Tensor, visible: Tensor | None, row: Tensor) -> Tensor:
    """All tokens through all blocks but the last, which is only asked for one row of each sentence, (C, width)."""
    *before, last = cast(Sequence[Block], blocks)
    for block in before:
        query, key, value = block.queries_keys_values(tokens)
        tokens = block.finish(tokens, F.scaled_dot_product_attention(query, key, value, attn_mask=visible))
    query, key, value = last.query_keys_values_of_row(tokens, row)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
    return last.finish(take_row(tokens, row), attended)[:, 0]


class SentenceReading(Protocol):
    """How rows of token ids become sentences that a tower reads."""

    def __call__(self, rows: Sequence[Sequence[int]]) -> Sentences: ...


@dataclass(frozen=True)
class ReadUpToEnd:
    """For a causal tower: up to the first end token, which in older checkpoints is the highest id of a row."""

    end_id: int | None  # None: the highest id

    def __call__(self, rows: Sequence[Sequence[int]]) -> Sentences:
        return split_sentences([row[: self._end(row) + 1] for row in rows])

    def _end(self, row: Sequence[int]) -> int:
        end = max(row) if self.end_id is None else self.end_id
        if end not in row[1:]:
            raise ValueError(f"a sentence needs an end token ({end}) after its start: {list(row)}")
        return row.index(end)


@dataclass(frozen=True)
class ReadPadded:
    """For a tower that looks both ways: padded to a length, or to the longest."""

    pad_id: int
    length: int = 0

    def __call__(self, rows: Sequence[Sequence[int]]) -> Sentences:
        return whole_sentences(rows, self.pad_id, self.length)
