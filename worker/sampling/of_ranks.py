"""Sampling in a tensor-parallel group: rank 0 chooses, and tells the others, which have the same logits.

A program that chooses tells its tokens itself, with UNKNOWN where the sampler is to choose; so all ranks know
whether another exchange follows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from kernels.api import SamplingColumns, SamplingOps
from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.grammar.rows import GrammarRows
from worker.parallel import ONE_RANK, ParallelGroup
from worker.sampling.logprobs.scores import SampledScores
from worker.sampling.sampler import Sampler


class FirstSampler(Sampler):
    """Chooses the tokens of all ranks."""

    group: ParallelGroup = ONE_RANK

    @contextmanager
    def untold(self) -> Iterator[None]:
        group, self.group = self.group, ONE_RANK
        try:
            yield
        finally:
            self.group = group

    def sample(
        self, logits: torch.Tensor, rows: list[int], scores: SampledScores | None = None
    ) -> torch.Tensor:
        return self.group.from_first(super().sample(logits, rows, scores))

    def take(self, chosen: torch.Tensor, rows: list[int], logits: Callable[[], torch.Tensor]) -> Integers:
        taken = super().take(chosen, rows, logits)
        return _told(self.group, chosen, torch.from_numpy(taken))


class FollowingSampler(Sampler):
    """Takes what rank 0 has chosen. It keeps nothing of rows: parameters, grammars and histories are
    there."""

    group: ParallelGroup = ONE_RANK

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Nothing begins."""

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Nothing begins."""

    def remove_row(self, row: int) -> None:
        """Nothing ends."""

    def sample(
        self, logits: torch.Tensor, rows: list[int], scores: SampledScores | None = None
    ) -> torch.Tensor:
        return self.group.from_first(torch.zeros(len(rows), dtype=torch.int64))

    def needs_logits(self, rows: Integers, elsewhere: bool) -> bool:
        """Rank 0 knows."""
        return False

    def take(self, chosen: torch.Tensor, rows: list[int], logits: Callable[[], torch.Tensor]) -> Integers:
        return _told(self.group, chosen, chosen.clone())

    def append(self, rows: list[int], tokens: torch.Tensor) -> None:
        """No row has a history."""

    def beam_candidates(
        self, logits: torch.Tensor, rows: list[int], count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The core hears of those of rank 0 alone."""
        return torch.zeros(len(rows), count, dtype=torch.int64), torch.zeros(len(rows), count)


def _told(group: ParallelGroup, chosen: torch.Tensor, taken: torch.Tensor) -> Integers:
    """Returns the tokens [A] int64 that rank 0 has taken. chosen: of the program, the same on all ranks."""
    tokens: Integers = (
        group.from_first(taken) if (chosen == SamplingColumns.UNKNOWN).any() else taken
    ).numpy()
    return tokens


def make_sampler(
    group: ParallelGroup,
    max_num_rows: int,
    vocab_size: int,
    device: torch.device,
    ops: SamplingOps | None = None,
    grammars: GrammarRows | None = None,
) -> Sampler:
    """Returns the sampler of a rank. All but the group: see Sampler."""
    arguments = max_num_rows, vocab_size, device, ops, grammars
    if group.size == 1:
        return Sampler(*arguments)
    sampler = FollowingSampler(*arguments) if group.rank else FirstSampler(*arguments)
    sampler.group = group
    return sampler
