"""The end of a program for steps of few tokens: logits, and the choice of rows that take the largest of them
and need nothing else.

    logits   [T, E] -> [T, V]     where all tokens are sampled from
    choice   [T, V] -> [T]        where all rows are greedy besides: kernels.cpu.sampling.argmax

Otherwise these records have no rows, and worker.sampling.sampler chooses, which is the reference: the same
tokens (tests/worker/test_greedy_steps.py).
"""

import torch

from kernels.api import InputBatch
from kernels.cpu.program.program import ROWS, Records
from kernels.cpu.program.recording import RecordingOps


class FusedHead:
    """The head of one program."""

    def __init__(self, ops: RecordingOps, logits: torch.Tensor, first: int) -> None:
        """logits: [M, V] float32, which the records from number `first` on compute."""
        from kernels.cpu.sampling.argmax import GreedyChoice  # compiles, the first time

        self.logits: torch.Tensor | None = None  # [T, V] of the last batch, if they are computed
        self.tokens: torch.Tensor | None = None  # [T] int64 of the last batch, if they are chosen
        self._all_logits, self._choice = logits, GreedyChoice(logits)
        self._product = slice(first, ops.next_index)
        for operation, record, grain in self._choice.operations():
            ops.put(operation, record, grain, repeatable=True)
        self._chosen = slice(self._product.stop, ops.next_index)
        ops.on_batch(self._update)

    def _update(self, batch: InputBatch, records: Records) -> None:
        """Writes down what of all this the batch needs."""
        computed = len(batch.token_ids) if batch.wants_all_logits else 0
        chosen = computed if batch.greedy else 0
        self.logits = self._all_logits[:computed] if computed else None
        self.tokens = self._choice.tokens[:chosen] if chosen else None
        records[self._product, ROWS] = computed
        self._choice.set_rows(records[self._chosen], chosen)
