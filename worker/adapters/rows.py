"""Which rows have which adapter, and which tokens of a step it changes: those from the row's start on."""

from dataclasses import replace

import numpy as np
import torch

from kernels.api import StepBatch, adapters
from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.adapters.store import AdapterStore
from worker.step.plan_reader import Step, ValueByRow
from worker.step.rows import PlanError, require

_Span = tuple[adapters.AdapterWeights, int, int]
"""Tokens of a step, from one to before another, and their adapter."""
_Key = tuple[list[_Span], list[int] | None]
"""And the tokens whose logits are sampled from; None: all, in order."""


class AdapterRows(ValueByRow[tuple[adapters.AdapterWeights, int]]):
    """The adapters of rows that have one, and where each starts."""

    def __init__(self, store: AdapterStore) -> None:
        super().__init__()
        self.store = store
        self._last: tuple[StepBatch, StepBatch, _Key] | None = None  # without adapters, and with them

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError for an adapter that is not held: the row's blocks would be cached as
        if it had it; and for one that starts behind the prompt: what a row samples is adapted, so that steps
        may be repeated."""
        if not new.HasField("adapter") or new.adapter.virtual_tokens:  # those are worker.step.embeddings'
            return
        digest, start = new.adapter.digest, new.adapter.start
        weights = self.store.find(digest)
        if weights is None:
            raise PlanError(f"row {row} has the adapter {digest.hex()}, which is not loaded")
        require(start < len(prompt_ids), f"the adapter of row {row} starts at {start}, behind the prompt")
        self._by_row[row] = weights, start

    def remove_row(self, row: int) -> None:
        """Ends a row. Nothing keeps its adapter then, which may have been dropped."""
        if row in self._by_row:
            self._last = None
        super().remove_row(row)

    def adapted(self, batch: StepBatch, step: Step) -> StepBatch:
        """Returns the inputs of a step with the adapters of its tokens. The same object as in the last call,
        where the batch and the tokens are the same."""
        if not self._by_row or self._by_row.keys().isdisjoint(step.rows.tolist()):
            return batch
        spans = self._spans(batch.row_starts, step)
        if not spans:
            return batch
        sampled = batch.logit_tokens
        key = spans, None if sampled is None else sampled.tolist()
        if self._last is None or self._last[0] is not batch or self._last[2] != key:
            found = _step_adapters(spans)
            of_logits = found if sampled is None else found.at(sampled)
            self._last = batch, replace(batch, adapters=found, logit_adapters=of_logits), key
        return self._last[1]

    def of_step(self, row_starts: Integers, step: Step) -> adapters.StepAdapters | None:
        """Returns the adapters of a step's tokens; None: no token has one. row_starts: [R] index of each
        row's first token."""
        spans = self._spans(row_starts, step) if self._by_row else []
        return _step_adapters(spans) if spans else None

    def _spans(self, row_starts: Integers, step: Step) -> list[_Span]:
        """Returns the adapted tokens, sorted by adapter."""
        columns = step.rows.tolist(), row_starts.tolist(), step.starts.tolist(), step.counts.tolist()
        spans = list[_Span]()
        for row, first, start, count in zip(*columns, strict=True):
            if row in self._by_row:
                weights, begin = self._by_row[row]
                skipped = min(max(0, begin - start), count)
                if skipped < count:
                    spans.append((weights, first + skipped, first + count))
        return sorted(spans, key=lambda span: id(span[0]))


def _step_adapters(spans: list[_Span]) -> adapters.StepAdapters:
    groups: list[tuple[adapters.AdapterWeights, int]] = []
    for weights, begin, end in spans:
        if groups and groups[-1][0] is weights:
            groups[-1] = weights, groups[-1][1] + end - begin
        else:
            groups.append((weights, end - begin))
    tokens = np.concatenate([np.arange(begin, end) for _, begin, end in spans])
    addresses = np.repeat([weights.address for weights, _ in groups], [count for _, count in groups])
    return adapters.StepAdapters(torch.from_numpy(tokens), torch.from_numpy(addresses), groups)
