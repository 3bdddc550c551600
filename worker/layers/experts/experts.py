"""A mixture of experts: gated feed-forward parts of which each token has some."""

from collections.abc import Callable

import torch

from kernels.cpu.elementwise.row_kernels import RowKernels
from kernels.cpu.experts.expert_kernels import ExpertKernels, expert_kernels
from kernels.ops.experts.combine import combine
from kernels.ops.experts.dispatch import dispatch
from kernels.ops.experts.route import route
from kernels.ops.experts.weigh import weigh
from worker.config.experts import ExpertsConfig
from worker.layers.experts.lowered import LoweredExperts
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.experts.router import ExpertRouter, SharedGate
from worker.layers.linear import Part, RowLinear, column_linear
from worker.layers.mlp.clamped_swiglu import ClampedGate
from worker.layers.mlp.gated_activation import GatedActivation
from worker.layers.mlp.mlp import FeedForward, GatedMLP
from worker.lowering.builder import ProgramBuilder
from worker.model_input import InputBatch
from worker.parallel import Placement


class Experts(FeedForward):
    """sum over the chosen experts of weight * down(f(gate(x)) * up(x)), and what all tokens have besides.
    Where inputs are weighed, x is weight * x, and the sum has no weights.

    Tokens are sorted by expert: only the weights of chosen experts are read, each once. A token's sum goes
    over its experts from the best one on, so that its bits do not depend on other tokens.
    """

    def __init__(self, config: ExpertsConfig, width: int, activation: str, place: Placement) -> None:
        """width: E. activation: of gates, where the configuration has no other. Parts are made in the order
        in which they are used."""
        super().__init__()
        self.group, count = place.group, config.routing.num_experts
        self.router = ExpertRouter(width, config.routing, place, config.router_bias, config.corrected)
        inner = Part(config.intermediate_size, place.group.slice(config.intermediate_size))
        whole = Part(width, slice(0, width))
        first = place.group.rank == 0
        kind = config.bias, config.transposed, config.alternating
        self.weighs_inputs = config.weighs_inputs
        self.expert_gate_up = ExpertMatrices(count, whole, (inner, inner), place, *kind)
        swiglu = config.swiglu
        self.activation: GatedActivation | ClampedGate = (
            GatedActivation(activation) if swiglu is None else ClampedGate(swiglu.alpha, swiglu.limit)
        )
        self.expert_down = ExpertMatrices(count, inner, (whole,), place, *kind, adds_bias=first)
        self.shared = self.shared_gate = None
        if config.shared_size:
            sizes = (config.shared_size,) * 2
            gate_up = column_linear(width, sizes, False, place)
            self.shared = GatedMLP(gate_up, RowLinear(config.shared_size, width, False, place), activation)
        if config.shared_gate:
            self.shared_gate = SharedGate(width, place)
        self.kernels: ExpertKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Chooses, sorts and sums with the compiled kernels."""
        self.kernels = expert_kernels(kernels.dtype)

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        return self.mix(x, *self.choose(x), batch)

    def mix(
        self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, batch: InputBatch
    ) -> torch.Tensor:
        """[T, E] -> [T, E]. weights, chosen: of choose()."""
        products = self._on_device if self.is_on_device else self._by_expert
        y, places = products(x, weights, chosen)
        weights = torch.ones_like(weights) if self.weighs_inputs else weights
        shared = None if self.shared is None else self.shared(x, batch)
        gate = None if self.shared_gate is None else self.shared_gate(x)
        sums = self._sums()
        if self.group.size == 1:
            return sums(y, weights, places, shared, gate)
        routed = self.group.all_reduce(sums(y, weights, places))
        every = torch.arange(len(x), device=x.device)[:, None]
        return sums(routed, torch.ones(len(x), 1, device=x.device), every, shared, gate)

    def _by_expert(
        self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what experts make of each pair, [P, E], and where pairs are in it, [T, k]."""
        order = dispatch(chosen, self.router.routing.num_experts)
        counts = order.counts.tolist()
        rows = weigh(x, weights, order.places) if self.weighs_inputs else x[order.tokens]
        gated = self.activation(self.expert_gate_up.products(rows, counts))
        return self.expert_down.products(gated, counts), order.places

    def _on_device(
        self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same on a CUDA device: the host learns nothing of what is chosen."""
        from kernels.triton.experts.dispatch import sort_by_expert
        from kernels.triton.experts.weigh import weigh as weigh_on_device

        most = min(self.expert_gate_up.most_pairs, self.expert_down.most_pairs)
        order = sort_by_expert(chosen, self.router.routing.num_experts, x.dtype, most_pairs=most)
        if self.weighs_inputs:
            gate_up = self.expert_gate_up.grouped(weigh_on_device(x, weights, order.places), order)
        else:
            gate_up = self.expert_gate_up.grouped(x, order, order.tokens)
        return self.expert_down.grouped(self.activation(gate_up), order), order.places

    def choose(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, E] -> weights [T, k] float32 and experts [T, k] int64."""
        router = self.router
        inputs = router(x), router.correction, router.routing
        if self.kernels is not None:
            return self.kernels.route(*inputs)
        if self.is_on_device:
            from kernels.triton.experts.route import route as route_on_device

            return route_on_device(*inputs)
        return route(*inputs)

    @property
    def is_on_device(self) -> bool:
        """Whether Triton's kernels compute."""
        return self.expert_gate_up.on_device

    def _sums(self) -> Callable[..., torch.Tensor]:
        """Returns kernels.ops.experts.combine.combine, or what computes the same faster."""
        if self.kernels is not None:
            return self.kernels.combine
        if self.is_on_device:
            from kernels.triton.experts.combine import combine as combine_on_device

            return combine_on_device
        return combine

    @property
    def can_lower(self) -> bool:
        """A program does not sum over ranks."""
        return self.kernels is not None and self.group.size == 1 and super().can_lower

    def lower(self, builder: ProgramBuilder, x: torch.Tensor) -> torch.Tensor:
        assert self.kernels is not None
        lowered = LoweredExperts(builder, self.kernels, self.router, x)
        rows = lowered.weigh() if self.weighs_inputs else lowered.gather()
        gate_up = lowered.product(self.expert_gate_up, rows)
        gated = lowered.pairs(gate_up.shape[1] // 2)
        lowered.add_per_pair(self.activation.lower(builder, gate_up, gated))
        y = lowered.product(self.expert_down, gated)
        shared = None if self.shared is None else self.shared.lower(builder, x)
        gate = None if self.shared_gate is None else self.shared_gate.lower_logits(builder, x)
        return lowered.combine(y, shared, gate)
