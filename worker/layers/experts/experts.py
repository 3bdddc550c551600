"""A mixture of experts: gated feed-forward parts of which each token has some."""

from collections.abc import Iterator

import torch

from kernels.api import InputBatch, WeightForms, adapters
from worker.config.experts import ExpertsConfig
from worker.layers.base import Weight
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.linear import RowLinear, column_linear
from worker.layers.matrix import AdaptedMatrix, Matrix
from worker.layers.mlp import ClampedGate, FeedForward, GatedActivation, GatedMLP
from worker.parallel import Placement, Shares


class WideMatrix(Matrix):
    """A linear layer of few outputs, which are float32 and not rounded. Every rank holds all of it, and its
    weight keeps its bits under --quantization int8."""

    keeps_parameter = True
    takes_adapters = True

    def __init__(self, count: int, width: int, bias: bool, place: Placement) -> None:
        """count: of outputs. width: E."""
        super().__init__(place.empty(count, width), place.empty(count) if bias else None)
        self.width, self.count = width, count

    @property
    def adapted_matrices(self) -> tuple[AdaptedMatrix, ...]:
        return (AdaptedMatrix(self.width, (self.count,)),)

    def pack(self, forms: WeightForms) -> None:
        self.method = self.method.pack(forms.exact, self.bias)

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, N] float32."""
        return self.adapted(self.product(x, wide=True), x, batch)


class ExpertRouter(WideMatrix):
    """The logits of the experts, and how they choose (kernels.ops.experts.dispatch)."""

    def __init__(self, width: int, config: ExpertsConfig, place: Placement) -> None:
        """width: E."""
        count = config.routing.num_experts
        super().__init__(count, width, config.router_bias, place)
        self.routing = config.routing
        self.correction: torch.nn.Parameter | None = None
        if config.corrected:
            wide = torch.empty(count, dtype=torch.float32, device=place.device)
            self.correction = torch.nn.Parameter(wide, requires_grad=False)

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules, and where there is a correction that of its tensor."""
        name, *correction = names
        yield from super().weights(name)
        if self.correction is not None:
            yield Weight(correction[0], tuple(self.correction.shape), self.correction)


class Experts(FeedForward):
    """sum over the chosen experts of weight * down(f(gate(x)) * up(x)), and what all tokens have besides.
    Where inputs are weighed, x is weight * x, and the sum has no weights.

    Tokens are sorted by expert: only the weights of chosen experts are read, each once. A token's sum goes
    over its experts from the best one on, so that its bits do not depend on other tokens. Each rank of a
    group has some of the experts, whole.
    """

    def __init__(self, config: ExpertsConfig, width: int, activation: str, place: Placement) -> None:
        """width: E. activation: of gates, where the configuration has no other. Parts are made in the order
        in which they are used."""
        super().__init__()
        self.num_experts = config.routing.num_experts
        firsts = (place.group.owned(rank, self.num_experts).start for rank in range(place.group.size))
        self.shares = Shares(place.group, (*firsts, self.num_experts))
        self.router = ExpertRouter(width, config, place)
        kind = config.bias, config.transposed, config.alternating
        self.weighs_inputs = config.weighs_inputs
        inner, count = config.intermediate_size, self.num_experts
        self.expert_gate_up = ExpertMatrices(count, width, (inner, inner), place, *kind)
        swiglu = config.swiglu
        self.activation: GatedActivation | ClampedGate = (
            GatedActivation(activation) if swiglu is None else ClampedGate(swiglu.alpha, swiglu.limit)
        )
        self.expert_down = ExpertMatrices(count, inner, (width,), place, *kind)
        self.shared = None
        self.shared_gate: WideMatrix | None = None
        """x @ w, whose sigmoid is the factor of the shared experts."""
        if config.shared_size:
            sizes = (config.shared_size,) * 2
            gate_up = column_linear(width, sizes, False, place)
            self.shared = GatedMLP(gate_up, RowLinear(config.shared_size, width, False, place), activation)
        if config.shared_gate:
            self.shared_gate = WideMatrix(1, width, False, place)

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        return self.mix(x, *self.choose(x, batch), batch)

    def mix(
        self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, batch: InputBatch
    ) -> torch.Tensor:
        """[T, E] -> [T, E]. weights, chosen: of choose()."""
        if self.shares.group.size == 1:
            y, places = self._by_expert(x, weights, chosen, batch.adapters)
        else:
            of_ranks = self.shares, self._by_expert
            y, places = self.ops.multiply_pairs(x, weights, chosen, *of_ranks, batch.adapters)
        given = None if self.weighs_inputs else weights
        shared = None if self.shared is None else self.shared(x, batch)
        gate = None if self.shared_gate is None else self.shared_gate(x, batch)[:, 0]
        return self.ops.combine(y, given, places, shared, gate)

    def _by_expert(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        chosen: torch.Tensor,
        adapters: adapters.StepAdapters | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what experts make of each pair, [P, E], and where pairs are in it, [T, k]. chosen: numbers
        of this rank's experts."""
        gate_up, down = self.expert_gate_up, self.expert_down
        order = self.ops.sort_by_expert(chosen, x.dtype, gate_up, down, adapters=adapters)
        if self.weighs_inputs:
            weighed = self.ops.weigh(x, weights, order.places)
            inner = self.ops.expert_linear(weighed, gate_up, order, adapters=adapters)
        else:
            inner = self.ops.expert_linear(x, gate_up, order, by_token=True, adapters=adapters)
        outer = self.ops.expert_linear(self.activation(inner), down, order, adapters=adapters)
        return outer, order.places

    def choose(self, x: torch.Tensor, batch: InputBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, E] -> weights [T, k] float32 and experts [T, k] int64."""
        return self.ops.route(self.router(x, batch), self.router.correction, self.router.routing)
