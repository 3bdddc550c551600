"""What the sampler's features are given: a new sequence, the logits of a step."""

from collections.abc import Container
from dataclasses import dataclass

import torch

from pagewire.internal.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that gets a row."""

    new: worker_pb2.NewRow
    prompt_ids: list[int]
    output_ids: list[int]

    def scalar(self, name: str, neutral: float) -> float:
        """A scalar of SamplingParams; absent means neutral."""
        sampling = self.new.sampling
        return float(getattr(sampling, name)) if sampling.HasField(name) else neutral


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """The logits of one step, before tokens are chosen. A rows, V tokens."""

    logits: torch.Tensor  # [A, V] float32, changed in place
    rows: list[int]  # [A]
    positions: list[int]  # [A] output tokens that the row has

    def users(self, rows: Container[int]) -> list[int]:
        """Batch indexes of those that are among the given rows."""
        return [index for index, row in enumerate(self.rows) if row in rows]

    def index(self, users: list[int]) -> torch.Tensor:
        """[U] int64: batch indexes, where the logits are."""
        return torch.tensor(users, device=self.logits.device)
