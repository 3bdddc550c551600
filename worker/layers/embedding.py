"""Token embedding and output head, both split by vocabulary; learned positions."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from worker.layers.layer import Weight, WeightOwner
from worker.parallel import Placement


class VocabEmbedding(WeightOwner):
    """A [V, E] table of which each rank holds consecutive rows. Looks up tokens, and makes logits.

    With tied weights one instance does both; otherwise the head is an instance of its own. The
    rows are divided evenly, but the last rank may hold fewer: its share of the logits is padded.
    """

    def __init__(self, vocab_size: int, width: int, place: Placement) -> None:
        super().__init__()
        self.vocab_size, self.width, self.group = vocab_size, width, place.group
        share = -(-vocab_size // place.group.size)
        self.first = min(place.group.rank * share, vocab_size)
        self.held = min(share, vocab_size - self.first)
        self.padding = share - self.held
        assert self.held > 0, "more ranks than tokens"
        self.weight = place.empty(self.held, width)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T] int64 -> [T, E]."""
        if self.group.size == 1:
            return F.embedding(token_ids, self.weight)
        local = token_ids - self.first
        ours = (local >= 0) & (local < self.held)
        found = F.embedding(local.where(ours, 0), self.weight)
        return self.group.all_reduce(found * ours[:, None])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] -> [A, V] float32."""
        part = F.linear(hidden, self.weight)
        if self.group.size > 1:
            part = self.group.all_gather(F.pad(part, (0, self.padding)))[:, : self.vocab_size]
        return part.float()

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name."""
        (name,) = names
        ours = slice(self.first, self.first + self.held)
        yield Weight(f"{name}.weight", (self.vocab_size, self.width), self.weight, (ours,))


class PositionEmbedding(WeightOwner):
    """A learned vector per position; `offset` rows of the table come before that of position 0."""

    def __init__(self, num_positions: int, width: int, place: Placement, offset: int = 0) -> None:
        super().__init__()
        self.offset = offset
        self.weight = place.empty(num_positions + offset, width)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """[T] int64 -> [T, E]."""
        return F.embedding(positions + self.offset, self.weight)

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name."""
        (name,) = names
        yield Weight(f"{name}.weight", tuple(self.weight.shape), self.weight)
