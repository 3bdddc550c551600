"""Sampling in a tensor-parallel group: rank 0 chooses, and tells the others, which have the same logits."""

import torch

from kernels.api import SamplingOps
from pagewire.internal.v1 import worker_pb2
from worker.grammar.rows import GrammarRows
from worker.parallel import ONE_RANK, ParallelGroup
from worker.sampling.logprobs.scores import SampledScores
from worker.sampling.sampler import Sampler


class FirstSampler(Sampler):
    """Chooses the tokens of all ranks."""

    group: ParallelGroup = ONE_RANK

    def sample(
        self, logits: torch.Tensor, rows: list[int], scores: SampledScores | None = None
    ) -> torch.Tensor:
        return self.group.from_first(super().sample(logits, rows, scores))


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

    def append(self, rows: list[int], tokens: torch.Tensor) -> None:
        """No row has a history."""

    def beam_candidates(
        self, logits: torch.Tensor, rows: list[int], count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The core hears of those of rank 0 alone."""
        return torch.zeros(len(rows), count, dtype=torch.int64), torch.zeros(len(rows), count)


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
