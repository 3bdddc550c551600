"""Which rows have which adapter, and which tokens of a step it changes: those from the row's start on."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from kernels.api import AdapterWeights, StepAdapters, StepBatch
from pagewire.internal.v1 import worker_pb2
from worker.adapters.store import AdapterStore
from worker.step.plan_reader import Step
from worker.step.rows import require

_Span = tuple[AdapterWeights, int, int]
"""Tokens of a step, from one to before another, and their adapter."""


class AdapterRows:
    """The rows that have an adapter. A worker.step.plan_reader.RowFeature."""

    def __init__(self, store: AdapterStore) -> None:
        self.store = store
        self._rows: dict[int, tuple[AdapterWeights, int]] = {}  # and where it starts
        self._missing: dict[int, str] = {}
        self._last: tuple[StepBatch, StepBatch, list[_Span]] | None = None  # without adapters, and with them

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError for an adapter that starts behind the prompt: tokens that a row
        samples are adapted, which is what lets steps be repeated."""
        if not new.HasField("adapter"):
            return
        digest, start = new.adapter.digest, new.adapter.start
        require(start < len(prompt_ids), f"the adapter of row {row} starts at {start}, behind the prompt")
        weights = self.store.find(digest)
        if weights is None:
            self._missing[row] = f"the adapter {digest.hex()[:16]} is not loaded"
        else:
            self._rows[row] = weights, start

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another."""
        if source_row in self._rows:
            self._rows[row] = self._rows[source_row]
        if source_row in self._missing:
            self._missing[row] = self._missing[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._rows.pop(row, None)
        self._missing.pop(row, None)

    def errors(self, rows: Sequence[int]) -> dict[int, str]:
        """Returns why rows cannot go on, by index into the rows [A]."""
        if not self._missing:
            return {}
        return {entry: self._missing[row] for entry, row in enumerate(rows) if row in self._missing}

    def adapted(self, batch: StepBatch, step: Step) -> StepBatch:
        """Returns the inputs of a step with the adapters of its tokens. The same object as in the last call,
        where the batch and the tokens are the same."""
        if not self._rows or self._rows.keys().isdisjoint(step.rows.tolist()):
            return batch
        spans = self._spans(batch, step)
        if not spans:
            return batch
        if self._last is None or self._last[0] is not batch or self._last[2] != spans:
            self._last = batch, replace(batch, adapters=_step_adapters(spans)), spans
        return self._last[1]

    def _spans(self, batch: StepBatch, step: Step) -> list[_Span]:
        """Returns the adapted tokens, sorted by adapter."""
        columns = step.rows.tolist(), batch.row_starts.tolist(), step.starts.tolist(), step.counts.tolist()
        spans = list[_Span]()
        for row, first, start, count in zip(*columns, strict=True):
            if row in self._rows:
                weights, begin = self._rows[row]
                skipped = min(max(0, begin - start), count)
                if skipped < count:
                    spans.append((weights, first + skipped, first + count))
        return sorted(spans, key=lambda span: id(span[0]))


def _step_adapters(spans: list[_Span]) -> StepAdapters:
    groups: list[tuple[AdapterWeights, int]] = []
    for weights, begin, end in spans:
        if groups and groups[-1][0] is weights:
            groups[-1] = weights, groups[-1][1] + end - begin
        else:
            groups.append((weights, end - begin))
    tokens = np.concatenate([np.arange(begin, end) for _, begin, end in spans])
    addresses = np.repeat([weights.address for weights, _ in groups], [count for _, count in groups])
    return StepAdapters(torch.from_numpy(tokens), torch.from_numpy(addresses), groups)
