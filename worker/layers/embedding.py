"""Token embedding and output head, both split by vocabulary; learned positions, and types of tokens."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from kernels.api import InputBatch, SumOrder, adapters
from worker.layers.base import Weight, WeightOwner
from worker.layers.matrix import AdaptedMatrix, Matrix
from worker.parallel import Placement, Shares


class VocabEmbedding(Matrix):
    """A [V, E] table of which each rank holds consecutive rows. Looks up tokens, and computes logits.

    With tied weights one instance does both; otherwise the head is another instance. Rows are divided evenly,
    but the last rank may hold fewer: its share of the logits is padded.
    """

    is_table = True
    takes_adapters = True

    def __init__(self, vocab_size: int, width: int, place: Placement) -> None:
        size, share = place.group.size, -(-vocab_size // place.group.size)
        shares = Shares(place.group, tuple(min(rank * share, vocab_size) for rank in range(size + 1)))
        held = shares.held
        assert held, "more ranks than tokens"
        super().__init__(place.empty(len(held), width))
        self.vocab_size, self.width, self.group, self.shares = vocab_size, width, place.group, shares
        self.sum_order = SumOrder(vocab_size)
        self.rows = slice(held.start, held.stop)
        """Of the whole table, those that this rank holds."""

    @property
    def adapted_matrices(self) -> tuple[AdaptedMatrix, ...]:
        """Of the head, and of the lookup."""
        return AdaptedMatrix(self.width, (len(self.shares.held),)), AdaptedMatrix(
            self.vocab_size, (self.width,)
        )

    def forward(self, batch: InputBatch, factor: float = 1.0) -> torch.Tensor:
        """Returns [T, E]: the rows of the step's tokens times the factor, or what stands for them
        (InputEmbeddings)."""
        shares = None if self.group.size == 1 else self.shares
        return self.ops.embed(
            self._lookup, batch, self.width, self.table, factor, self._lookup_number, shares
        )

    @property
    def _lookup_number(self) -> int | None:
        return None if self.number is None else self.number + 1

    def _lookup(self, batch: InputBatch) -> torch.Tensor:
        """Returns [T, E], the rows of the step's tokens."""
        token_ids, number = batch.token_ids, self._lookup_number
        found = self.look_up(token_ids) if self.group.size == 1 else self._of_owners(token_ids)
        if number is None or batch.adapters is None:
            return found
        return self.ops.adapt_embeddings(found, token_ids, number, batch.adapters, self.vocab_size)

    def _of_owners(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T] -> [T, E]: each row from the rank that holds it."""
        local = (token_ids - self.rows.start).clamp(0, len(self.shares.held) - 1)
        of_ranks = self.group.stacked(self.look_up(local))
        owners = token_ids // self.shares.largest
        return of_ranks[owners, torch.arange(len(token_ids), device=token_ids.device)]

    def logits(self, hidden: torch.Tensor, adapters: adapters.StepAdapters | None = None) -> torch.Tensor:
        """[A, E] -> [A, V] float32. adapters: of these rows."""
        part = self.product(hidden, wide=True)
        if self.number is not None:
            part = self.ops.adapt(part, hidden, self.number, adapters)
        return part if self.group.size == 1 else self.ops.join_columns(part, self.shares)

    def weights(self, *names: str) -> Iterator[Weight]:
        (name,) = names
        yield Weight(f"{name}.weight", (self.vocab_size, self.width), self.weight, (self.rows,))


class PositionEmbedding(WeightOwner):
    """A learned vector per position; the table has `offset` rows before that of position 0."""

    def __init__(self, num_positions: int, width: int, place: Placement, offset: int = 0) -> None:
        super().__init__()
        self.offset, self.width = offset, width
        self.weight = place.empty(num_positions + offset, width)

    def forward(self, batch: InputBatch) -> torch.Tensor:
        """Returns [T, E], the vectors of the positions of the step's tokens."""
        return F.embedding(batch.positions + self.offset, self.weight)


class TokenTypes(WeightOwner):
    """A learned vector per type of token."""

    def __init__(self, num_types: int, width: int, place: Placement) -> None:
        super().__init__()
        self.weight = place.empty(num_types, width)

    def forward(self, batch: InputBatch) -> torch.Tensor:
        """Returns [T, E], or [E] where all tokens have the type 0, as those of a model with one type have."""
        types = batch.token_types
        return self.weight[0] if types is None or len(self.weight) == 1 else self.weight[types]
