"""Rows whose prompts have values in place of tokens (docs/prompt-embeddings.md)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kernels.api import StepBatch
from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.step.plan_reader import Step, ValueByRow
from worker.step.rows import PlanError, column, require

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class _Values:
    """What stands in a row's prompt."""

    positions: Integers  # [N], ascending
    values: torch.Tensor  # [N, E]


class EmbeddingRows(ValueByRow[_Values]):
    """The values of each row."""

    def __init__(
        self, dtype: torch.dtype, virtual_tokens: Callable[[bytes], torch.Tensor | None] = lambda digest: None
    ) -> None:
        """dtype: of the model, to which values are rounded. virtual_tokens: returns those [n, E] of an
        adapter, in this dtype, by its digest; None: it is not loaded, or has none."""
        super().__init__()
        self._dtype, self._virtual_tokens = dtype, virtual_tokens

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        if new.adapter.virtual_tokens:
            self._by_row[row] = self._values_of_adapter(row, new, len(prompt_ids))
        if not new.HasField("embeddings"):
            return
        require(row not in self._by_row, f"row {row} has embeddings and virtual tokens")
        given, positions = new.embeddings, column(new.embeddings.positions)
        require(given.dtype in DTYPES, f"row {row} has embeddings of dtype {given.dtype!r}")
        require(len(positions) > 0, f"row {row} has embeddings of no token")
        require((np.diff(positions) > 0).all(), f"row {row} has embeddings out of order")
        require(positions[-1] < len(prompt_ids), f"row {row} has embeddings beyond its prompt")
        dtype = DTYPES[given.dtype]
        row_bytes = len(positions) * dtype.itemsize
        require(
            len(given.values) > 0 and len(given.values) % row_bytes == 0,
            f"row {row} has embeddings of different sizes",
        )
        values = torch.frombuffer(bytearray(given.values), dtype=dtype).view(len(positions), -1)
        self._by_row[row] = _Values(positions, values.to(self._dtype))

    def _values_of_adapter(self, row: int, new: worker_pb2.NewRow, prompt_len: int) -> _Values:
        count, found = new.adapter.virtual_tokens, self._virtual_tokens(new.adapter.digest)
        if found is None or len(found) != count:
            raise PlanError(f"row {row} has an adapter of {count} virtual tokens, which is not loaded")
        require(count < prompt_len, f"row {row} has virtual tokens alone")
        return _Values(np.arange(count, dtype=np.int64), found)

    def forget(self, step: Step) -> None:
        """Drops the values of rows that a step goes on behind. To be called before the step, and not for
        parts of it, which may be computed again from its beginning."""
        for row, start in zip(step.rows.tolist(), step.starts.tolist(), strict=True) if self._by_row else ():
            if (found := self._by_row.get(row)) is not None and start > found.positions[-1]:
                del self._by_row[row]

    def put(self, step: Step, batch: StepBatch) -> StepBatch:
        """Returns the batch of a step with the values of its rows, as of_step() gives them."""
        found = self.of_step(batch.row_starts, step)
        return batch if found is None else batch.with_embeddings(*found)

    def of_step(self, row_starts: Integers, step: Step) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns the tokens of a step that have values, [N] int64, and these, [N, E]; None: none has.
        row_starts: [R] index of each row's first token."""
        if not self._by_row:
            return None
        tokens: list[Integers] = []
        values: list[torch.Tensor] = []
        columns = step.rows.tolist(), step.starts.tolist(), step.counts.tolist(), row_starts.tolist()
        for row, start, count, first in zip(*columns, strict=True):
            found = self._by_row.get(row)
            if found is None:
                continue
            low, high = np.searchsorted(found.positions, (start, start + count)).tolist()
            if low < high:
                tokens.append(found.positions[low:high] - start + first)
                values.append(found.values[low:high])
        return (torch.from_numpy(np.concatenate(tokens)), torch.cat(values)) if tokens else None


def tokens_of_prompt(new: worker_pb2.NewRow, prompt_ids: list[int]) -> list[int]:
    """Returns the ids of a prompt without those that embeddings stand in place of."""
    if new.adapter.virtual_tokens:
        return prompt_ids[new.adapter.virtual_tokens :]
    if not new.HasField("embeddings"):
        return prompt_ids
    replaced = set(column(new.embeddings.positions).tolist())
    return [token for position, token in enumerate(prompt_ids) if position not in replaced]
