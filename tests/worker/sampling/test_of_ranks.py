"""Rank 0 chooses tokens for all ranks."""

import numpy as np
import torch

from kernels.ops.sampling.columns import UNKNOWN
from pagewire.internal.v1.worker_pb2 import NewRow
from tests.worker.fakes import resolved_params
from tests.worker.ranks import on_ranks
from worker.cpu.weights import CPU
from worker.parallel import ONE_RANK, ParallelGroup
from worker.sampling.of_ranks import make_sampler
from worker.sampling.sampler import Sampler

VOCAB_SIZE = 50


def test_all_ranks_get_the_tokens_of_rank_0():
    """Though the logits of the others are not looked at."""

    def work(group: ParallelGroup) -> list[torch.Tensor]:
        sampler = make_sampler(group, 4, VOCAB_SIZE, CPU)
        for row in range(3):
            params = resolved_params(temperature=1.0, seed=row, presence_penalty=0.5)
            sampler.add_row(row, NewRow(row=row, sampling=params), [1, 2], [])
        found = []
        for step in range(4):
            logits = torch.randn(3, VOCAB_SIZE, generator=torch.manual_seed(step))
            found.append(sampler.sample(logits if group.rank == 0 else torch.zeros(3, VOCAB_SIZE), [0, 1, 2]))
        ids, scores = sampler.beam_candidates(torch.zeros(2, VOCAB_SIZE), [0, 1], 5)
        assert ids.shape == scores.shape == (2, 5)
        sampler.fork_row(3, 0, 1)
        sampler.remove_row(0)
        return found

    (expected,) = on_ranks(1, work)
    for found in on_ranks(2, work):
        assert all(map(torch.equal, found, expected))


def test_tokens_that_a_program_has_chosen():
    """All ranks have them; where one is unknown, rank 0 chooses it, and tells."""
    known, unknown = torch.tensor([5, 6]), torch.tensor([5, UNKNOWN])
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[1, 7] = 1

    def work(group: ParallelGroup) -> list[list[int]]:
        sampler = make_sampler(group, 4, VOCAB_SIZE, CPU)
        for row in range(2):
            sampler.add_row(row, NewRow(row=row, sampling=resolved_params()), [1, 2], [])
        assert group.rank == 0 or not sampler.needs_logits(np.arange(2), True)
        found = []
        for chosen in (known, unknown):
            kept = chosen.clone()
            taken = sampler.take(kept, [0, 1], lambda: logits)
            kept.fill_(0)  # a program writes there again
            found.append(taken.tolist())
        return found

    assert on_ranks(2, work) == [[[5, 6], [5, 7]]] * 2


def test_a_rank_that_is_alone_has_the_usual_sampler():
    assert type(make_sampler(ONE_RANK, 4, VOCAB_SIZE, CPU)) is Sampler
