"""Rank 0 chooses tokens for all ranks."""

import torch

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


def test_a_rank_that_is_alone_has_the_usual_sampler():
    assert type(make_sampler(ONE_RANK, 4, VOCAB_SIZE, CPU)) is Sampler
