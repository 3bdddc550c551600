"""The operations of layers by Triton's kernels, on CUDA or in Triton's interpreter. Imports triton."""

from collections.abc import Sequence
from typing import Any

import torch

from kernels.ops.layers.adapters import AdapterWeights, LayerParts, StepAdapters
from kernels.torch_ops import HeadWeight, Ops, PairProducts, RankGroup, Shares
from kernels.triton.adapters.adapt import adapt, adapt_embeddings, adapt_experts, adapt_heads
from kernels.triton.adapters.pack import DeviceAdapter
from kernels.triton.adapters.pairs import AdaptedOrder, with_adapters
from kernels.triton.attention.attention_sizes import tile_sizes
from kernels.triton.capabilities import capability_of
from kernels.triton.elementwise.activation import activation, clamped_swiglu, gated_activation
from kernels.triton.elementwise.rms_norm import add_rms_norm, rms_norm
from kernels.triton.experts.combine import combine, weigh
from kernels.triton.experts.dispatch import ExpertOrder, order_by_head, sort_by_expert
from kernels.triton.experts.grouped_linear import grouped_linear
from kernels.triton.experts.grouped_low_bit_linear import grouped_low_bit_linear
from kernels.triton.experts.route import route
from kernels.triton.experts.tile_sizes import token_classes
from kernels.triton.matmul.linear import linear
from kernels.triton.matmul.low_bit_linear import low_bit_linear
from kernels.triton.matmul.low_bit_weight import MOST_ROWS, LowBitWeight
from kernels.triton.matmul.range_launch import sum_ranges
from kernels.triton.matmul.ranges import SumOrder
from kernels.triton.states.convolution import convolution
from kernels.triton.states.delta_rule import delta_rule
from kernels.triton.states.norms import gated_norm, grouped_norm
from kernels.triton.states.selective_scan import selective_scan
from kernels.triton.step.copy_segments import copy_segments
from kernels.triton.step.inputs import PagedInputs
from kernels.triton.step.prepare_inputs import append_tokens

CPU = torch.device("cpu")


class TritonOps(Ops):
    """Nothing of a step is read by the host, so that launches can be captured. States have no drafts."""

    def __init__(self, by_library: bool = False, place: torch.device = CPU) -> None:
        """by_library: torch multiplies, unless the result is wide, which it would round first. place: where
        adapters go."""
        self.by_library, self._place = by_library, place

    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    activation = staticmethod(activation)
    clamped_swiglu = staticmethod(clamped_swiglu)
    route = staticmethod(route)
    weigh = staticmethod(weigh)
    combine = staticmethod(combine)
    low_bit_linear = staticmethod(low_bit_linear)
    adapt = staticmethod(adapt)
    adapt_embeddings = staticmethod(adapt_embeddings)
    adapt_experts = staticmethod(adapt_experts)

    def gated_activation(self, gate_up: torch.Tensor, name: str, factor: float = 1.0) -> torch.Tensor:
        if factor != 1:
            gate, up = gate_up.chunk(2, dim=1)
            gate_up = torch.cat((gate * factor, up), dim=1)
        return gated_activation(gate_up, name)

    def linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        wide: bool = False,
        order: SumOrder | None = None,
    ) -> torch.Tensor:
        if self.by_library and not wide:
            return super().linear(x, weight, bias)
        return linear(x, weight, bias, wide, order=order)

    def pack_adapter(self, layers: Sequence[LayerParts]) -> AdapterWeights:
        return DeviceAdapter(layers, self._place)

    def head_linear(
        self,
        x: torch.Tensor,
        matrices: Sequence[HeadWeight],
        stacked: torch.Tensor | None,
        adapters: StepAdapters | None = None,
    ) -> torch.Tensor:
        if stacked is None:
            return super().head_linear(x, matrices, stacked, adapters)
        tokens, heads, width = x.shape
        order = order_by_head(tokens, heads, x.dtype, x.device)
        y = grouped_linear(x.reshape(-1, width), stacked, None, order, order.tokens)
        y = y.view(heads, tokens, -1).transpose(0, 1)
        number = matrices[0].number  # behind which are the others'
        return y if adapters is None or number is None else adapt_heads(y, x, number, adapters)

    def add_partials(
        self, partial: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, group: RankGroup
    ) -> torch.Tensor:
        out = torch.empty_like(partial, dtype=dtype)
        sum_ranges(group.stacked(partial), bias, out, as_tree=True)
        return out

    def multiply_pairs(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        chosen: torch.Tensor,
        shares: Shares,
        products: PairProducts,
        adapters: StepAdapters | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All ranks copy as many pairs as there are, of which only their own are computed: the host does not
        know which these are."""
        held, group, count = shares.held, shares.group, chosen.numel()
        ours = (chosen >= held.start) & (chosen < held.stop)
        y, places = products(x, weights, torch.where(ours, chosen - held.start, len(held)), adapters)
        of_ranks = group.stacked(y.index_select(0, places.flatten()))
        owners = torch.zeros_like(chosen)
        for first in shares.starts[1:-1]:
            owners += chosen >= first
        pairs = torch.arange(count, device=x.device)
        every = of_ranks.flatten(0, 1).index_select(0, owners.flatten() * count + pairs)
        return every, pairs.view(chosen.shape)

    append_tokens = staticmethod(append_tokens)
    copy_segments = staticmethod(copy_segments)
    step_inputs = PagedInputs
    token_classes = staticmethod(token_classes)
    convolution = staticmethod(convolution)
    delta_rule = staticmethod(delta_rule)
    selective_scan = staticmethod(selective_scan)
    gated_norm = staticmethod(gated_norm)
    grouped_norm = staticmethod(grouped_norm)

    def sort_by_expert(
        self,
        chosen: torch.Tensor,
        dtype: torch.dtype,
        *products: Any,
        adapters: StepAdapters | None = None,
    ) -> ExpertOrder:
        held = [each.stacked for each in products]
        most = [each.code.most_rows if isinstance(each, LowBitWeight) else MOST_ROWS for each in held]
        count = products[0].num_experts
        if count < products[0].num_stored:  # of ranks, which have others
            order = sort_by_expert(chosen, count + 1, dtype, most_pairs=min(most))
            return order.without_last(count)
        order = sort_by_expert(chosen, count, dtype, most_pairs=min(most))
        if adapters is None or products[0].number is None:
            return order
        return with_adapters(order, chosen, count, adapters)

    def expert_linear(
        self,
        x: torch.Tensor,
        weights: Any,
        order: ExpertOrder,
        by_token: bool = False,
        adapters: StepAdapters | None = None,
    ) -> torch.Tensor:
        bias, rows = weights.bias if weights.adds_bias else None, order.tokens if by_token else None
        if isinstance(weights.stacked, LowBitWeight):
            y = grouped_low_bit_linear(x, weights.stacked, bias, order, rows)
        else:
            y = grouped_linear(x, weights.stacked, bias, order, rows)
        if adapters is None or not isinstance(order, AdaptedOrder):
            return y
        return adapt_experts(y, x, weights.number, adapters, order, by_token)

    @staticmethod
    def attends_alike(groups: Sequence[int], head_dim: int, place: torch.device) -> bool:
        """Returns whether a device attends in tiles of one size, and so with the same bits, where so many
        query heads share a KV head, for each of these numbers."""
        capability = capability_of(place)
        return all(
            len({tile_sizes(group, head_dim, dtype, capability=capability) for group in groups}) == 1
            for dtype in (torch.bfloat16, torch.float32)
        )
