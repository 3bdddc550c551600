"""Weights that layers with a state read themselves, and the convolution over the last tokens."""

from collections.abc import Iterator

import torch

from kernels.api import WeightForms
from worker.layers.base import Weight, WeightOwner
from worker.parallel import Placement


def wide(place: Placement, *shape: int) -> torch.nn.Parameter:
    """A parameter that is float32 in every dtype."""
    return torch.nn.Parameter(
        torch.empty(shape, dtype=torch.float32, device=place.device), requires_grad=False
    )


class Convolution(WeightOwner):
    """The weights of a convolution by channel, and its bias: zeros where the checkpoint has none."""

    def __init__(
        self,
        channels: int,
        taps: int,
        place: Placement,
        has_bias: bool = False,
        factors: torch.Tensor | None = None,
    ) -> None:
        """factors: of what is convolved, [channels] float32; None: 1."""
        super().__init__()
        self.factors = factors
        self.weight = wide(place, channels, 1, taps)
        self.has_bias = has_bias
        self.bias = wide(place, channels) if has_bias else torch.zeros(channels, device=place.device)
        self._by_tap: torch.Tensor | None = None

    def pack(self, forms: WeightForms) -> None:
        self._by_tap = self.by_tap()

    def by_tap(self) -> torch.Tensor:
        """[taps, C] float32."""
        if self._by_tap is not None:
            return self._by_tap
        weight = self.weight[:, 0].t()
        return (weight if self.factors is None else weight * self.factors).contiguous()

    def weights(self, *names: str) -> Iterator[Weight]:
        (name,) = names
        yield Weight(f"{name}.weight", tuple(self.weight.shape), self.weight)
        if self.has_bias:
            yield Weight(f"{name}.bias", tuple(self.bias.shape), self.bias)
