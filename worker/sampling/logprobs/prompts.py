"""Log-probabilities of prompts: the logits at a position score the token at the next one."""

from collections.abc import Callable, Iterator, Sequence

import torch

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.sampling.logprobs.columns import to_columns
from worker.sampling.logprobs.requests import PromptPart
from worker.sampling.logprobs.scores import Scores, score
from worker.sampling.sampler import PIECE

LOGITS = 1 << 22
"""Logits computed at a time, 16 MB. Each time reads the head's weights once; all logits of 2,048 tokens and a
vocabulary of 152,000 would take 1.2 GB."""


def score_prompts(
    parts: Sequence[PromptPart],
    row_starts: Integers,
    token_ids: Integers,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    vocab_size: int,
) -> Iterator[worker_pb2.RowPromptLogprobs]:
    """Scores parts of prompts that a step computed. Waits for the device.

    row_starts: [R] index in the step of each computing row's first token. token_ids: the row table's.
    logits_of: indexes of tokens in the step [N] -> their logits [N, V].
    """
    step = max(1, LOGITS // vocab_size)
    for part in parts:
        first = int(row_starts[part.index]) + part.offset
        targets = torch.from_numpy(token_ids[part.row, part.start : part.end])
        scores: list[Scores] = []
        for begin in range(0, len(targets), step):
            some = targets[begin : begin + step]
            logits = logits_of(torch.arange(first + begin, first + begin + len(some)))
            scores += _score_in_pieces(logits, some.to(logits.device), part, max(1, PIECE // vocab_size))
        columns = to_columns([each.table() for each in scores])
        yield worker_pb2.RowPromptLogprobs(row=part.row, start=part.start, columns=columns)


def _score_in_pieces(
    logits: torch.Tensor, targets: torch.Tensor, part: PromptPart, rows_per_piece: int
) -> Iterator[Scores]:
    """Scores a few rows at a time, so that the allocator reuses temporaries; see worker.sampling.sampler."""
    for begin in range(0, len(targets), rows_per_piece):
        some = targets[begin : begin + rows_per_piece]
        yield score(logits[begin : begin + len(some)], some, [part.candidates] * len(some))
