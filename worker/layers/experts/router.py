"""The router of a mixture of experts, and the gate of what all tokens have besides."""

from collections.abc import Iterator

import torch

from kernels.api import Arena, Routing, WeightForms
from worker.layers.base import Weight
from worker.layers.packed_linear import Matrix
from worker.parallel import Placement


class WideMatrix(Matrix):
    """A linear layer of few outputs, which are float32 and not rounded. Every rank holds all of it, and its
    weight keeps its bits under --quantization int8."""

    holds_words = False

    def pack(self, forms: WeightForms, arena: Arena) -> None:
        self.packed = forms.exact(self.weight, self.bias, arena)
        del self.weight


class ExpertRouter(WideMatrix):
    """The logits of the experts, and how they choose (kernels.ops.experts.route)."""

    def __init__(
        self, width: int, routing: Routing, place: Placement, bias: bool = False, corrected: bool = False
    ) -> None:
        """width: E. corrected: the choice has a correction by expert."""
        count = routing.num_experts
        super().__init__(place.empty(count, width), place.empty(count) if bias else None)
        self.width, self.routing = width, routing
        self.correction: torch.nn.Parameter | None = None
        if corrected:
            wide = torch.empty(count, dtype=torch.float32, device=place.device)
            self.correction = torch.nn.Parameter(wide, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, E] -> [T, N] float32."""
        return self.product(x, wide=True)

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules, and where there is a correction that of its tensor."""
        name, *correction = names
        count = self.routing.num_experts
        yield Weight(f"{name}.weight", (count, self.width), self.weight)
        if self.bias is not None:
            yield Weight(f"{name}.bias", (count,), self.bias)
        if self.correction is not None:
            yield Weight(correction[0], (count,), self.correction)


class SharedGate(WideMatrix):
    """x @ w, whose sigmoid is the factor of the shared experts."""

    def __init__(self, width: int, place: Placement) -> None:
        """width: E."""
        super().__init__(place.empty(1, width))
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, E] -> [T] float32."""
        return self.product(x, wide=True)[:, 0]

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules; see WeightOwner."""
        (name,) = names
        yield Weight(f"{name}.weight", (1, self.width), self.weight)
