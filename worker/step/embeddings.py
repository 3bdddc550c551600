"""Rows whose prompts have values in place of tokens: those of a message (docs/prompt-embeddings.md), of an
adapter, or what the encoder has made of media."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from kernels.api import InputBatch, StepBatch
from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.step.media import EncodedItems, positions_of
from worker.step.plan_reader import Step, ValueByRow
from worker.step.rows import PlanError, column, require

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Batch = TypeVar("Batch", bound=InputBatch)
Values = Callable[[], torch.Tensor]
"""Returns values [N, D * E]; if there are others than positions, they cannot be used. May raise PlanError."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What stands at some positions of a row's prompt."""

    positions: Integers  # [N], ascending
    values: Values
    vectors_per_position: int = 1  # D: one in place of the token, others that are added behind layers


@dataclass(frozen=True, slots=True)
class StepValues:
    """What stands in place of a step's tokens."""

    tokens: torch.Tensor  # [N] int64: index into T
    values: torch.Tensor  # [N, E]
    deeper: tuple[torch.Tensor, torch.Tensor] | None = None
    """Tokens [M] int64, and what is added to their states behind the first L layers, [M, L, E]."""

    def with_tokens_sent(self, send: Callable[[Integers], torch.Tensor]) -> "StepValues":
        """Returns the same with tokens on the device where the values are."""
        deeper = self.deeper and (send(self.deeper[0].numpy()), self.deeper[1])
        return StepValues(send(self.tokens.numpy()), self.values, deeper)

    def put(self, batch: Batch) -> Batch:
        """Returns a batch with them."""
        return batch.with_embeddings(self.tokens, self.values, self.deeper)


class EmbeddingRows(ValueByRow[Sequence[_Part]]):
    """The values of each row, in the order of their positions."""

    def __init__(
        self,
        dtype: torch.dtype,
        virtual_tokens: Callable[[bytes], torch.Tensor | None] | None = None,
        media: EncodedItems | None = None,
        send: Callable[[torch.Tensor], torch.Tensor] = lambda values: values,
    ) -> None:
        """dtype: of the model, to which values are rounded. virtual_tokens: returns those [n, E] of an
        adapter, in this dtype, by its digest, or None: it is not loaded, or has none. media: what is encoded;
        None: no row has media. send: to the device where values are read."""
        super().__init__()
        self._dtype, self._virtual_tokens, self._send = dtype, virtual_tokens, send
        self._media = EncodedItems(None) if media is None else media
        self.failed: set[int] = set()
        """Rows that have computed positions without values, until they end."""

    def follow(self, plan: worker_pb2.StepPlan) -> bool:
        """Forgets and encodes what a plan says. Returns whether memory has sufficed. Raises PlanError."""
        return self._media.follow(plan)

    def forget_media(self) -> None:
        """Forgets all that is encoded, for a core that knows of nothing."""
        self._media.forget_all()

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        count = self._media.vectors_per_position
        parts = [_Part(positions_of(row, item), self._encoded(item), count) for item in new.media]
        if new.adapter.virtual_tokens:
            parts.insert(0, self._values_of_adapter(row, new, len(prompt_ids)))
        if new.HasField("embeddings"):
            require(not parts, f"row {row} has embeddings and virtual tokens or media")
            parts.append(self._given(row, new))
        if not parts:
            return
        order = np.concatenate([part.positions for part in parts])
        require((np.diff(order) > 0).all(), f"row {row} has embeddings or media out of order")
        require(order[-1] < len(prompt_ids), f"row {row} has embeddings or media beyond its prompt")
        self._by_row[row] = parts

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        super().fork_row(row, source_row, sequence_index)
        if source_row in self.failed:
            self.failed.add(row)

    def remove_row(self, row: int) -> None:
        super().remove_row(row)
        self.failed.discard(row)

    def _given(self, row: int, new: worker_pb2.NewRow) -> _Part:
        """Returns what a message has."""
        given, positions = new.embeddings, column(new.embeddings.positions)
        require(given.dtype in DTYPES, f"row {row} has embeddings of dtype {given.dtype!r}")
        require(len(positions) > 0, f"row {row} has embeddings of no token")
        dtype = DTYPES[given.dtype]
        row_bytes = len(positions) * dtype.itemsize
        require(
            len(given.values) > 0 and len(given.values) % row_bytes == 0,
            f"row {row} has embeddings of different sizes",
        )
        found = torch.frombuffer(bytearray(given.values), dtype=dtype).view(len(positions), -1)
        values = found.to(self._dtype)
        return _Part(positions, lambda: values)

    def _values_of_adapter(self, row: int, new: worker_pb2.NewRow, prompt_len: int) -> _Part:
        count, find = new.adapter.virtual_tokens, self._virtual_tokens
        found = None if find is None else find(new.adapter.digest)
        if found is None or len(found) != count:
            raise PlanError(f"row {row} has an adapter of {count} virtual tokens, which is not loaded")
        require(count < prompt_len, f"row {row} has virtual tokens alone")
        return _Part(np.arange(count, dtype=np.int64), lambda: found)

    def _encoded(self, item: engine_pb2.MediaItem) -> Values:
        """Returns what finds the vectors of an item when a step computes its positions: some later plan may
        encode it."""
        digest = item.digest
        return lambda: self._media[digest]

    def forget(self, step: Step) -> None:
        """Drops the values of rows that a step goes on behind. To be called before the step, and not for
        parts of it, which may be computed again from its beginning."""
        for row, start in zip(step.rows.tolist(), step.starts.tolist(), strict=True) if self._by_row else ():
            if (found := self._by_row.get(row)) is not None and start > found[-1].positions[-1]:
                del self._by_row[row]

    def put(self, step: Step, batch: StepBatch) -> StepBatch:
        """Returns the batch of a step with the values of its rows, as of_step() gives them."""
        found = self.of_step(batch.row_starts, step)
        return batch if found is None else found.put(batch)

    def of_step(self, row_starts: Integers, step: Step) -> StepValues | None:
        """Returns the values of a step's tokens; None: none has any. The tokens are on the host. row_starts:
        [R] index of each row's first token. Raises PlanError."""
        if not self._by_row:
            return None
        tokens: list[Integers] = []
        values: list[torch.Tensor] = []
        deeper: list[tuple[Integers, torch.Tensor]] = []
        columns = step.rows.tolist(), step.starts.tolist(), step.counts.tolist(), row_starts.tolist()
        for row, start, count, first in zip(*columns, strict=True):
            for part in self._by_row.get(row, ()):
                low, high = np.searchsorted(part.positions, (start, start + count)).tolist()
                if low == high:
                    continue
                found = part.values()
                if len(found) != len(part.positions):
                    self.failed.add(row)
                    found = _unusable(len(part.positions), found)
                tokens.append(part.positions[low:high] - start + first)
                sent = self._send(found[low:high])
                if part.vectors_per_position > 1:
                    every = sent.view(high - low, part.vectors_per_position, -1)
                    sent = every[:, 0]
                    deeper.append((tokens[-1], every[:, 1:]))
                values.append(sent)
        if not tokens:
            return None
        added = None
        if deeper:
            at, vectors = zip(*deeper, strict=True)
            added = torch.from_numpy(np.concatenate(at)), torch.cat(vectors)
        return StepValues(torch.from_numpy(np.concatenate(tokens)), torch.cat(values), added)


def _unusable(count: int, values: torch.Tensor) -> torch.Tensor:
    """Returns values [count, E] that make every row fail which reads what is computed with them: its blocks
    may be shared before it is known to have failed."""
    return values.new_full((count, values.shape[1]), torch.nan)


def tokens_of_prompt(new: worker_pb2.NewRow, prompt_ids: list[int]) -> list[int]:
    """Returns the ids of a prompt without those that embeddings or media stand in place of."""
    columns = [item.positions for item in new.media]
    if new.HasField("embeddings"):
        columns.append(new.embeddings.positions)
    if not columns:
        return prompt_ids[new.adapter.virtual_tokens :]
    replaced = set(range(new.adapter.virtual_tokens)) | set(column(b"".join(columns)).tolist())
    return [token for position, token in enumerate(prompt_ids) if position not in replaced]
