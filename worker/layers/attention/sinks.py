"""Attention sinks: a learned score of each head that takes weight and has no value."""

from collections.abc import Iterator

import torch

from worker.layers.base import Weight, WeightOwner
from worker.parallel import Placement


class Sinks(WeightOwner):
    """The scores of this rank's heads, for kernels.attention.plan.Scoring."""

    def __init__(self, num_heads: int, place: Placement) -> None:
        """num_heads: of all ranks."""
        super().__init__()
        self.num_heads, self.local = num_heads, place.group.slice(num_heads)
        scores = torch.empty(place.group.split(num_heads), dtype=torch.float32, device=place.device)
        self.scores = torch.nn.Parameter(scores, requires_grad=False)

    def weights(self, *names: str) -> Iterator[Weight]:
        """The name of the tensor."""
        (name,) = names
        yield Weight(name, (self.num_heads,), self.scores, (self.local,))
