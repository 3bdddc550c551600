"""Layers of an encoder of sounds that others do not have."""

from collections.abc import Iterator

import torch

from worker.layers.base import Weight
from worker.layers.linear import ColumnLinear, Part
from worker.layers.matrix import Matrix
from worker.parallel import Placement

TAPS = 3
"""Frames that a convolution reads at once."""


class Convolution(Matrix):
    """A convolution over time with a frame of zeros at both ends, as a product: [N, C] -> [n, E]."""

    keeps_parameter = True

    def __init__(self, channels: int, width: int, stride: int, place: Placement) -> None:
        super().__init__(place.empty(width, channels * TAPS), place.empty(width))
        self._stored, self._stride = (width, channels, TAPS), stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, C] -> [N / stride, E], rounded up."""
        framed = torch.nn.functional.pad(x, (0, 0, 1, 1))
        return self.product(framed.unfold(0, TAPS, self._stride).flatten(1))

    def weights(self, *names: str) -> Iterator[Weight]:
        (name,) = names
        assert self.bias is not None
        yield Weight(f"{name}.weight", self._stored, self.weight)
        yield Weight(f"{name}.bias", tuple(self.bias.shape), self.bias)


class QueryKeyValue(ColumnLinear):
    """Projections of which that of keys has no bias."""

    def __init__(self, width: int, place: Placement) -> None:
        super().__init__(width, (Part(width, slice(0, width)),) * 3, False, place)
        bias = torch.zeros(3, width, dtype=place.dtype, device=place.device)
        self.of_queries_and_values = torch.nn.Parameter(bias[::2], requires_grad=False)
        self.bias = bias.view(-1)  # the same memory

    def weights(self, *names: str) -> Iterator[Weight]:
        """names: of the modules of queries, keys and values."""
        bias_of_keys = f"{names[1]}.bias"
        return (weight for weight in super().weights(*names) if weight.name != bias_of_keys)
