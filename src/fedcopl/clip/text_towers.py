"""Text transformers: causal for CLIP, bidirectional for SigLIP and BERT.

Two optimisations do not change the result:

* with causal attention, the tokens that all sentences begin with (start, context, common words) are computed once;
* the last block computes only the token that becomes the feature: CLIP's end token, SigLIP's last, BERT's first.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ModelError
from .blocks import Block, TowerShape, concat_shared, take_row


@dataclass(frozen=True)
class Sentences:
    """Tokenized sentences, split into a prefix that all have and the rest of each.

    For a causal tower the prefix has at least the start token, and each rest at least the end token. For a
    bidirectional tower the prefix is empty.
    """

    shared: Tensor  # token ids of the prefix, (P,)
    rest: Tensor  # token ids of the rests, (C, S), padded after the end token
    end: Tensor  # position of the end token in each rest, (C,)

    def to(self, device: torch.device) -> "Sentences":
        return Sentences(self.shared.to(device), self.rest.to(device), self.end.to(device))


def split_sentences(rows: Sequence[Sequence[int]]) -> Sentences:
    """Split token rows, each from start to end token, after their longest common prefix."""
    longest, shortest = max(map(len, rows)), min(map(len, rows))
    differing = (i for i in range(1, shortest - 1) if len({row[i] for row in rows}) > 1)
    shared = next(differing, max(shortest - 1, 1))
    rest = [[*row[shared:], *[row[-1]] * (longest - len(row))] for row in rows]
    end = [len(row) - shared - 1 for row in rows]
    return Sentences(torch.tensor(rows[0][:shared]), torch.tensor(rest), torch.tensor(end))


class TextTower(nn.Module, ABC):
    """Base of the text transformers: token and position embeddings, blocks, last layer norm and projection."""

    block: type[Block] = Block
    projection_bias = False

    def __init__(self, shape: TowerShape, *, vocabulary: int, positions: int, output: int):
        super().__init__()
        self.shape, self.output = shape, output
        self.context_length = positions  # maximum number of tokens in a sentence, learnt context included
        self.embedding = nn.Embedding(vocabulary, shape.width)
        self.positions = nn.Parameter(torch.empty(positions, shape.width))
        self.blocks = nn.ModuleList(self.block(shape) for _ in range(shape.depth))
        self.norm_last: nn.Module = nn.LayerNorm(shape.width, shape.epsilon)
        self.project: nn.Module = nn.Linear(shape.width, output, bias=self.projection_bias)

    @abstractmethod
    def forward(self, sentences: Sentences, context: Tensor | None = None) -> Tensor:
        """Return features, (C, output), not normalised; learnt context vectors, (m, width), precede the words."""

    def _check_length(self, length: int) -> None:
        if length > self.context_length:
            raise ModelError(f"a sentence has {length} tokens, at most {self.context_length} fit; use a shorter name")


class CausalText(TextTower):
    """CLIP's causal text transformer."""

    def forward(self, sentences: Sentences, context: Tensor | None = None) -> Tensor:
        shared, rest = self._embed(sentences, context)
        mask = _causal_mask(shared.shape[1], rest.shape[1], rest.device)
        *before, last = cast(Sequence[Block], self.blocks)
        for block in before:
            shared_attended, attended = _causal_attention(block, shared, rest, mask)
            shared, rest = block.finish(shared, shared_attended), block.finish(rest, attended)
        features: Tensor = self.project(self.norm_last(_causal_output_at_end(last, shared, rest, mask, sentences.end)))
        return features

    def _embed(self, sentences: Sentences, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """Embed the shared prefix with the context, (1, P + m, width), and the rests, (C, S, width)."""
        prefix = self.embedding(sentences.shared)
        shared = prefix if context is None else torch.cat([prefix[:1], context, prefix[1:]])
        length = len(shared) + sentences.rest.shape[1]
        self._check_length(length)
        rest = self.embedding(sentences.rest) + self.positions[len(shared) : length]
        return (shared + self.positions[: len(shared)])[None], rest


def _causal_mask(shared: int, rest: int, device: torch.device) -> Tensor:
    """Return the mask of the keys that each token of the rest attends to, (rest, shared + rest)."""
    prefix = torch.ones(rest, shared, dtype=torch.bool, device=device)
    return torch.cat([prefix, torch.ones(rest, rest, dtype=torch.bool, device=device).tril()], dim=1)


def _causal_attention(block: Block, shared: Tensor, rest: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the attention output of the shared prefix and of the rests; keys and values are freed on return."""
    shared_query, shared_key, shared_value = block.queries_keys_values(shared)
    query, key, value = block.queries_keys_values(rest)
    key, value = concat_shared(shared_key, key, first=True), concat_shared(shared_value, value, first=True)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    shared_attended = F.scaled_dot_product_attention(shared_query, shared_key, shared_value, is_causal=True)
    return shared_attended, attended


def _causal_output_at_end(block: Block, shared: Tensor, rest: Tensor, mask: Tensor, end: Tensor) -> Tensor:
    """Return the last block's output at each sentence's end token, (C, width)."""
    shared_key, shared_value = block.keys_values(shared)
    query, key, value = block.query_keys_values_of_row(rest, end)
    key, value = concat_shared(shared_key, key, first=True), concat_shared(shared_value, value, first=True)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[end][:, None, None])
    return block.finish(take_row(rest, end), attended)[:, 0]


class PaddedText(TextTower):
    """SigLIP's text transformer: bidirectional, padding included; the feature is the last token's output."""

    projection_bias = True

    def forward(self, sentences: Sentences, context: Tensor | None = None) -> Tensor:
        """Encode sentences padded to all positions; a context comes first, and as much padding is removed."""
        context_tokens = 0 if context is None else len(context)
        self._check_length(int(sentences.end.max()) + 1 + context_tokens)
        words = self.embedding(sentences.rest[:, : self.context_length - context_tokens])
        tokens = _insert_context(words, context, 0) + self.positions
        row = torch.full((len(tokens),), self.context_length - 1, device=tokens.device)
        features: Tensor = self.project(self.norm_last(_bidirectional_output(self.blocks, tokens, None, row)))
        return features


class _PostNormBlock(Block):
    """BERT's block: layer norm after each residual sum instead of before attention and MLP."""

    def attention_input(self, x: Tensor) -> Tensor:
        return x

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.norm_attention(x + self.out(attended.transpose(1, 2).flatten(2)))
        finished: Tensor = self.norm_mlp(x + self.mlp(x))
        return finished


class BertText(TextTower):
    """BERT: padding is masked, a context follows the first token [CLS], and its output is the feature."""

    block = _PostNormBlock

    def __init__(
        self, shape: TowerShape, *, vocabulary: int, positions: int, output: int, token_types: int, hidden: int | None
    ):
        super().__init__(shape, vocabulary=vocabulary, positions=positions, output=output)
        self.kinds = nn.Parameter(torch.empty(token_types, shape.width))  # token types, of which row 0 is used
        self.norm_first = nn.LayerNorm(shape.width, shape.epsilon)
        self.norm_last = nn.Identity()  # each block ends with a layer norm
        layers = [shape.width, output] if hidden is None else [shape.width, hidden, output]
        linear = [nn.Linear(inputs, outputs, bias=False) for inputs, outputs in pairwise(layers)]
        self.project = linear[0] if len(linear) == 1 else nn.Sequential(linear[0], nn.GELU(), linear[1])

    def forward(self, sentences: Sentences, context: Tensor | None = None) -> Tensor:
        tokens = _insert_context(self.embedding(sentences.rest), context, 1)
        length, context_tokens = tokens.shape[1], 0 if context is None else len(context)
        self._check_length(length)
        tokens = self.norm_first(tokens + self.positions[:length] + self.kinds[0])
        mask = torch.arange(length, device=tokens.device) <= (sentences.end + context_tokens)[:, None]
        row = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
        features: Tensor = self.project(_bidirectional_output(self.blocks, tokens, mask[:, None, None], row))
        return features


def _insert_context(words: Tensor, context: Tensor | None, after: int) -> Tensor:
    """Insert context vectors, (m, width), after the first `after` tokens of each sentence, (C, S, width)."""
    if context is None:
        return words
    return torch.cat([words[:, :after], context.expand(len(words), -1, -1), words[:, after:]], dim=1)


def _bidirectional_output(blocks: nn.ModuleList, tokens: Tensor, mask: Tensor | None, row: Tensor) -> Tensor:
    """Apply all blocks and return the output of token `row[c]` of each sentence c, (C, width)."""
    *before, last = cast(Sequence[Block], blocks)
    for block in before:
        query, key, value = block.queries_keys_values(tokens)
        tokens = block.finish(tokens, F.scaled_dot_product_attention(query, key, value, attn_mask=mask))
    query, key, value = last.query_keys_values_of_row(tokens, row)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return last.finish(take_row(tokens, row), attended)[:, 0]


def split_at_end(rows: Sequence[Sequence[int]], end_id: int | None) -> Sentences:
    """Truncate token rows after the end token, and split them for a causal tower.

    If `end_id` is None, the end token of a row is its highest id, as in older checkpoints.
    """
    truncated = []
    for row in rows:
        end = max(row) if end_id is None else end_id
        if end not in row[1:]:
            raise ValueError(f"a sentence needs an end token ({end}) after its start: {list(row)}")
        truncated.append(row[: row.index(end) + 1])
    return split_sentences(truncated)


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int, length: int = 0) -> Sentences:
    """Pad token rows for a bidirectional tower to `length` tokens, or to the longest row if that has more."""
    ends = [max((position for position, token in enumerate(row) if token != pad_id), default=0) for row in rows]
    longest = max(length, *(end + 1 for end in ends))
    rest = [[*row[: end + 1], *[pad_id] * (longest - end - 1)] for row, end in zip(rows, ends, strict=True)]
    return Sentences(torch.empty(0, dtype=torch.long), torch.tensor(rest), torch.tensor(ends))
