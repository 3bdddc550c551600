"""What a decoder's program does with the hidden states of a step of few tokens: logits, and the choice of
rows that want the largest of them and nothing else.

    head    [T, E] -> logits [T, V]            where all tokens are sampled from
    choice  logits -> tokens [T]               where all rows are greedy besides:
    kernels.cpu.sampling.argmax_api

Otherwise these records have no rows, and worker.sampling.sampler chooses, which is the twin: the same tokens
(tests/worker/test_greedy_steps.py).
"""

from typing import TYPE_CHECKING

import torch

from kernels.cpu.compiler.records import OperationRecord
from kernels.cpu.runtime.arena import zeros
from kernels.cpu.sampling.argmax_api import RECORDS, GreedyChoice, greedy_kernels
from worker.model_input import InputBatch

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Program

ROWS = OperationRecord.word("rows")
CHOICE = RECORDS


class DecoderHead:
    """Of one program."""

    def __init__(self, vocab_size: int, most: int) -> None:
        """most: M, tokens of a step."""
        self.all_logits = zeros((most, vocab_size), torch.float32)  # [M, V], of the head's product
        self.logits: torch.Tensor | None = None  # [T, V] of the batch, where they are computed
        self.tokens: torch.Tensor | None = None  # [T] int64 of the batch, where they are chosen
        self._choice = GreedyChoice(greedy_kernels(), self.all_logits)

    def put_choice(self, program: "Program", product: slice) -> None:
        """Behind the records of the product."""
        self._choice.put(program, product.stop)
        self._product = program.records[product]
        self._chosen = program.records[product.stop : product.stop + CHOICE]

    def read_from(self, batch: InputBatch) -> None:
        """Writes down what the batch wants of all this."""
        tokens = len(batch.token_ids)
        computed = tokens if batch.wants_all_logits else 0
        chosen = computed if batch.greedy else 0
        self.logits = self.all_logits[:computed] if computed else None
        self.tokens = self._choice.tokens[:chosen] if chosen else None
        self._product[:, ROWS] = computed
        self._choice.set_rows(self._chosen, chosen)
