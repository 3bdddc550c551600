"""Token embedding and output head, both split by vocabulary; learned positions."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from kernels.cpu.elementwise.row_kernels import row_grain
from kernels.cpu.matmul.records import PackedRowsRecord
from worker.layers.base import Weight, WeightOwner
from worker.layers.packed_linear import Matrix
from worker.lowering.builder import ProgramBuilder
from worker.lowering.program import ROWS, Records
from worker.model_input import InputBatch
from worker.parallel import Placement

_INDEXES = PackedRowsRecord.word("indexes")


class VocabEmbedding(Matrix):
    """A [V, E] table of which each rank holds consecutive rows. Looks up tokens, and computes logits.

    With tied weights one instance does both; otherwise the head is another instance. Rows are divided evenly,
    but the last rank may hold fewer: its share of the logits is padded.
    """

    is_table = True

    def __init__(self, vocab_size: int, width: int, place: Placement) -> None:
        share = -(-vocab_size // place.group.size)
        first = min(place.group.rank * share, vocab_size)
        held = min(share, vocab_size - first)
        assert held > 0, "more ranks than tokens"
        super().__init__(place.empty(held, width))
        self.vocab_size, self.width, self.group = vocab_size, width, place.group
        self.first, self.held, self.padding = first, held, share - held

    @property
    def can_lower(self) -> bool:
        """Where the table is not packed, the host looks up rows."""
        return self.group.size == 1 and (self.packed is None or self.packed.is_unpadded)

    def forward(self, batch: InputBatch) -> torch.Tensor:
        """Returns [T, E]: the rows of the step's tokens, or what stands for them (InputEmbeddings)."""
        x = self._lookup(batch.token_ids)
        if batch.input_embeddings is None:
            return x
        return x.index_copy(0, batch.input_embeddings.tokens, batch.input_embeddings.values)

    def lower_lookup(self, builder: ProgramBuilder) -> torch.Tensor:
        if self.table is None:
            return builder.host_input("embedded", self.width, self)
        out = builder.buffers.shared("embedded", self.width)
        record = self.table.rows_record(0, out.data_ptr())
        index = builder.put(self.table.gather, record, row_grain(self.width))

        def look_up(batch: InputBatch, records: Records) -> None:
            records[index, _INDEXES] = batch.token_ids.data_ptr()
            if batch.input_embeddings is not None:
                records[index, ROWS] = 0

        def copy_in(batch: InputBatch, records: Records) -> None:
            if batch.input_embeddings is not None:
                out[: len(batch.token_ids)] = self(batch)

        builder.on_batch(look_up)
        builder.on_run(copy_in, lambda batch: batch.input_embeddings is None)
        return out

    def _lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T] int64 -> [T, E]."""
        if self.group.size == 1:
            return self._rows(token_ids)
        local = token_ids - self.first
        ours = (local >= 0) & (local < self.held)
        found = self._rows(local.where(ours, 0))
        return self.group.all_reduce(found * ours[:, None])

    def lower_logits(self, builder: ProgramBuilder, hidden: torch.Tensor) -> torch.Tensor:
        """The table must be packed."""
        assert self.packed is not None
        logits = builder.buffers.shared("logits", self.vocab_size, torch.float32)
        return builder.product(self.packed, hidden, logits)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] -> [A, V] float32."""
        part = self.product(hidden, wide=True)
        if self.group.size > 1:
            part = self.group.all_gather(F.pad(part, (0, self.padding)))[:, : self.vocab_size]
        return part

    def _rows(self, indexes: torch.Tensor) -> torch.Tensor:
        """[T] int64 -> [T, E]."""
        return F.embedding(indexes, self.weight) if self.table is None else self.table.rows(indexes)

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules; see WeightOwner."""
        (name,) = names
        ours = slice(self.first, self.first + self.held)
        yield Weight(f"{name}.weight", (self.vocab_size, self.width), self.weight, (ours,))


class PositionEmbedding(WeightOwner):
    """A learned vector per position; the table has `offset` rows before that of position 0."""

    def __init__(self, num_positions: int, width: int, place: Placement, offset: int = 0) -> None:
        super().__init__()
        self.offset, self.width = offset, width
        self.weight = place.empty(num_positions + offset, width)

    @property
    def can_lower(self) -> bool:
        """The host looks up rows."""
        return True

    def forward(self, batch: InputBatch) -> torch.Tensor:
        """Returns [T, E], the vectors of the positions of the step's tokens."""
        return F.embedding(batch.positions + self.offset, self.weight)

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules; see WeightOwner."""
        (name,) = names
        yield Weight(f"{name}.weight", tuple(self.weight.shape), self.weight)
