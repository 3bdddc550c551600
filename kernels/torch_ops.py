"""The operations that layers are made of, computed by torch: what every platform computes.

    Ops         torch, on any device: the definitions, those of kernels.ops
    CpuOps      kernels.cpu_ops: compiled kernels, for bfloat16 and float32
    TritonOps   kernels.triton_ops: Triton's kernels, on CUDA

A layer calls the operations of its `ops` and knows no platform. A platform overrides what it computes faster,
and leaves the rest to torch. T: tokens of the step.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F

from kernels.ops.attention.full_attention import full_attention
from kernels.ops.experts.dispatch import Dispatch, combine, dispatch, route, weigh
from kernels.ops.layers import adapters, norms
from kernels.ops.layers.activation import activation, clamped_swiglu, gated_activation
from kernels.ops.layers.linear import linear, low_bit_linear
from kernels.ops.layers.rotary import rotary
from kernels.ops.states.convolution import convolution
from kernels.ops.states.delta_rule import delta_rule
from kernels.ops.states.selective_scan import selective_scan

Batch = TypeVar("Batch")
Embeddable = TypeVar("Embeddable", bound="HasInputEmbeddings")
Value = TypeVar("Value")


class HasInputEmbeddings(Protocol):
    """A batch that may have values in place of tokens."""

    @property
    def input_embeddings(self) -> Any:
        """A kernels.batch.InputEmbeddings, or None."""


class Packed(Protocol):
    """A matrix in a packed form (kernels.cpu.weight_forms)."""

    def multiply(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[T, in] -> [T, out], with the bias. wide: the result is float32."""
        ...


class HeadWeight(Protocol):
    """The matrix of one head."""

    number: int | None  # in pack_adapter(); None: it takes no adapters

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] -> [T, out]."""
        ...


class ExpertWeights(Protocol):
    """The matrices of all experts of one product."""

    num_experts: int
    out_features: int
    number: int | None  # of the first in pack_adapter(); None: they take no adapters

    def product(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        """[P, in] -> [P, out], by the matrix of one expert."""
        ...


class HeadNorm(Protocol):
    """A norm over each head of queries or of keys, or over all of them."""

    eps: float
    offset: float

    @property
    def weight(self) -> torch.Tensor:
        """[D], or [N * D]."""
        ...

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        """[..., E] -> [..., E], of as many values as the weight has."""
        ...


class RankGroup(Protocol):
    """The tensor-parallel ranks that compute one model together (worker.parallel.ParallelGroup)."""

    @property
    def rank(self) -> int:
        """The number of this one."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    @property
    def link(self) -> Any:
        """A kernels.cpu.runtime.rank_link.RankLink, by which programs exchange; None: they cannot."""
        ...

    def gather(self, part: torch.Tensor, /) -> Sequence[torch.Tensor]:
        """Returns the tensors of all ranks."""
        ...

    def stacked(self, part: torch.Tensor, /) -> torch.Tensor:
        """Returns the tensors of all ranks, [ranks, ...]."""
        ...

    def send(self, x: torch.Tensor, /) -> None:
        """Copies a tensor from rank 0 of two to the other one."""
        ...

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, /) -> torch.Tensor:
        """Returns the tensor that rank 0 of two sends."""
        ...

    def gather_columns(self, part: torch.Tensor, /) -> torch.Tensor:
        """Returns the parts of all ranks side by side."""
        ...

    def sum(self, partial: torch.Tensor, /) -> torch.Tensor:
        """Returns the sum of the tensors of all ranks."""
        ...

    def largest(self, part: torch.Tensor, /) -> torch.Tensor:
        """Returns the largest value of all ranks at each index."""
        ...


class Shares(Protocol):
    """Consecutive things, such as rows of a table, of which each rank has some (worker.parallel.Shares)."""

    @property
    def group(self) -> RankGroup:
        """The ranks."""
        ...

    @property
    def starts(self) -> tuple[int, ...]:
        """The first one of each rank, and behind the last one."""
        ...

    @property
    def held(self) -> range:
        """Those of this rank."""
        ...

    @property
    def largest(self) -> int:
        """The most that a rank has."""
        ...


class ExactIntegers(Protocol):
    """A packed matrix of a rank's inputs, whose sums are exact in any order (kernels.cpu.matmul.int8)."""

    def add_over_ranks(
        self,
        x: torch.Tensor,
        largest: Callable[[torch.Tensor], torch.Tensor],
        add: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """[T, K of this rank] -> [T, N] float32, of all inputs, without a bias."""
        ...


PairProducts = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, adapters.StepAdapters | None],
    tuple[torch.Tensor, torch.Tensor],
]
"""(x [T, E], weights [T, k], experts [T, k], adapters): what the experts make of each pair, [P, E], and where
pairs are in it, [T, k]."""


class Ops:
    """The operations by torch. Those of kernels.ops have their shapes and dtypes there."""

    rms_norm = staticmethod(norms.rms_norm)
    add_rms_norm = staticmethod(norms.add_rms_norm)
    layer_norm = staticmethod(norms.layer_norm)
    add_layer_norm = staticmethod(norms.add_layer_norm)
    activation = staticmethod(activation)
    gated_activation = staticmethod(gated_activation)
    clamped_swiglu = staticmethod(clamped_swiglu)
    adjust_logits = staticmethod(norms.adjust_logits)
    rotate = staticmethod(rotary)
    full_attention = staticmethod(full_attention)
    output_gate = staticmethod(norms.output_gate)
    gated_norm = staticmethod(norms.gated_norm)
    grouped_norm = staticmethod(norms.grouped_norm)
    convolution = staticmethod(convolution)
    delta_rule = staticmethod(delta_rule)
    selective_scan = staticmethod(selective_scan)
    linear = staticmethod(linear)
    low_bit_linear = staticmethod(low_bit_linear)
    route = staticmethod(route)
    weigh = staticmethod(weigh)
    combine = staticmethod(combine)
    adapt = staticmethod(adapters.adapt)
    adapt_embeddings = staticmethod(adapters.adapt_embeddings)
    adapt_experts = staticmethod(adapters.adapt_experts)

    def scaled_add(
        self, x: torch.Tensor, y: torch.Tensor | None, factor: float = 1.0, lasts: bool = False
    ) -> torch.Tensor:
        """x * factor + y, [T, E]. y: None stands for zeros. lasts: the result is read after the step."""
        return norms.scaled_add(x, y, factor)

    def packed_linear(self, x: torch.Tensor, weight: Packed, wide: bool = False) -> torch.Tensor:
        """[T, in] -> [T, out], with the weight's bias. wide: the result is float32."""
        return weight.multiply(x, wide)

    def pack_adapter(self, layers: Sequence[adapters.LayerParts]) -> adapters.AdapterWeights:
        """Returns an adapter in the form that adapt() reads. layers: by the number of the layer."""
        return adapters.PlainAdapter(layers)

    def head_linear(
        self,
        x: torch.Tensor,
        matrices: Sequence[HeadWeight],
        stacked: torch.Tensor | None,
        adapters: adapters.StepAdapters | None = None,
    ) -> torch.Tensor:
        """[T, H, in] -> [T, H, out], each head by its matrix, with what adapters make of its x. stacked: all
        matrices [H, out, in], where they are one tensor."""
        heads = list[torch.Tensor]()
        for head, matrix in enumerate(matrices):
            y = matrix.product(x[:, head])
            heads.append(y if matrix.number is None else self.adapt(y, x[:, head], matrix.number, adapters))
        return torch.stack(heads, 1)

    def side_by_side(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H, D] -> [T, H * D], contiguous."""
        return x.flatten(1)

    def latent_heads(
        self,
        absorbed: torch.Tensor,
        rotary_queries: torch.Tensor,
        latents: torch.Tensor,
        norm: HeadNorm,
        rotation: Callable[[torch.Tensor], torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns queries [T, H, R + P] and what is kept of each token, [T, R + P]: R values of the latent,
        normed, and P that are rotated. absorbed: [T, H, R]; rotary_queries: [T, H * P]; latents: [T, R + P],
        as they are projected."""
        tokens, heads, rank = absorbed.shape
        rotated = rotation(torch.cat((rotary_queries, latents[:, rank:]), 1).view(tokens, heads + 1, -1))
        both = absorbed.new_empty((tokens, heads + 1, latents.shape[1]))
        both[:, :heads, :rank] = absorbed
        both[:, heads, :rank] = norm(latents[:, :rank])
        both[:, :, rank:] = rotated
        return both[:, :-1], both[:, -1]

    def sort_by_expert(
        self,
        chosen: torch.Tensor,
        dtype: torch.dtype,
        *products: ExpertWeights,
        adapters: adapters.StepAdapters | None = None,
    ) -> Dispatch | Any:
        """Returns the order of the pairs of tokens and experts, P = T * k, sorted by expert: its `places`,
        [T, k], and what the platform needs besides. chosen: [T, k]. dtype: of activations. products: what
        pairs are multiplied by. adapters: of the tokens, for expert_linear()."""
        return dispatch(chosen, products[0].num_experts)

    def expert_linear(
        self,
        x: torch.Tensor,
        weights: ExpertWeights,
        order: Any,
        by_token: bool = False,
        adapters: adapters.StepAdapters | None = None,
    ) -> torch.Tensor:
        """Returns the products of all pairs, [P, out], with what adapters make of x. x: [P, in] in this
        order; by_token: [T, in]. order: of sort_by_expert()."""
        x = x[order.tokens] if by_token else x
        out, first = x.new_empty((x.shape[0], weights.out_features)), 0
        for expert, count in enumerate(order.counts.tolist()):
            if count:
                out[first : first + count] = weights.product(x[first : first + count], expert)
                first += count
        if adapters is None or weights.number is None:
            return out
        return self.adapt_experts(out, x, weights.number, adapters, order)

    def add_partials(
        self, partial: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, group: RankGroup
    ) -> torch.Tensor:
        """Returns the sum of the partial results of all ranks, [T, N] float32, and the bias [N], rounded
        once."""
        return _rounded_sum(group.sum(partial), bias, dtype)

    def linear_over_ranks(
        self, x: torch.Tensor, weight: ExactIntegers, bias: torch.Tensor | None, group: RankGroup
    ) -> torch.Tensor:
        """[T, K of this rank] -> [T, N] of all inputs, with the bias."""
        return _rounded_sum(weight.add_over_ranks(x, group.largest, group.sum), bias, x.dtype)

    def join_columns(self, part: torch.Tensor, shares: Shares) -> torch.Tensor:
        """Returns the columns of all ranks, [T, N], on every rank. part: [T, those of this rank]. shares: of
        N; only the last rank may have fewer than others."""
        padded = F.pad(part, (0, shares.largest - part.shape[1]))
        return shares.group.gather_columns(padded)[:, : shares.starts[-1]]

    def multiply_pairs(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        chosen: torch.Tensor,
        shares: Shares,
        products: PairProducts,
        adapters: adapters.StepAdapters | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what the experts of all ranks make of each pair, [P, E], and where pairs are in it, [T, k]:
        each rank computes the pairs of its own experts, and copies of all are exchanged. chosen: [T, k].
        shares: of the experts. products: of the experts of this rank, by their numbers there."""
        (tokens, count), group, flat = chosen.shape, shares.group, chosen.flatten()
        pairs = [
            ((flat >= start) & (flat < end)).nonzero().flatten()
            for start, end in zip(shares.starts, shares.starts[1:], strict=False)
        ]
        own = pairs[group.rank]
        of_pairs = own // count  # the token of each
        adapted = None if adapters is None else adapters.at(of_pairs)
        own_weights, own_experts = weights.flatten()[own, None], flat[own, None] - shares.held.start
        y, places = products(x[of_pairs], own_weights, own_experts, adapted)
        padding = max(map(len, pairs)) - len(own)
        gathered = group.gather(F.pad(y[places.flatten()], (0, 0, 0, padding)))
        every = y.new_empty(tokens * count, y.shape[1])
        for indexes, of_rank in zip(pairs, gathered, strict=True):
            every[indexes] = of_rank[: len(indexes)]
        return every, torch.arange(tokens * count, device=x.device).view(tokens, count)

    def send(self, x: torch.Tensor, group: RankGroup) -> None:
        """Copies a tensor from rank 0 of a group of two to the other one, which receives it."""
        group.send(x)

    def receive(self, shape: tuple[int, int], dtype: torch.dtype, group: RankGroup) -> torch.Tensor:
        """Returns the tensor that rank 0 of a group of two sends, which has this shape."""
        return group.receive(shape, dtype)

    def layer(self) -> AbstractContextManager[None]:
        """What is computed within belongs to one layer of the model."""
        return _LAYER

    def per_step(
        self,
        compute: Callable[[Batch], torch.Tensor],
        batch: Batch,
        width: int,
    ) -> torch.Tensor:
        """Returns compute(batch), [T, width], which needs the contents of the batch."""
        return compute(batch)

    def embed(
        self,
        look_up: Callable[[Embeddable], torch.Tensor],
        batch: Embeddable,
        width: int,
        table: Any = None,
        factor: float = 1.0,
        number: int | None = None,
        shares: Shares | None = None,
    ) -> torch.Tensor:
        """Returns look_up(batch) * factor, [T, width], or the batch's input embeddings for some rows. table:
        packed, if look_up() gives its rows of the step's tokens. number: of the lookup in pack_adapter().
        shares: of the tokens, where each rank has some rows of the table; None: it has all."""
        x = look_up(batch)
        if factor != 1:
            x = self.scaled_add(x, None, factor)
        given = batch.input_embeddings
        return x if given is None else x.index_copy(0, given.tokens, given.values)

    def rotation(self, compute: Callable[[Batch], Value], batch: Batch, queries_only: bool) -> Value:
        """Returns compute(batch), what the step's tokens are rotated by. queries_only: keys are not."""
        return compute(batch)


def _rounded_sum(y: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    return (y if bias is None else y + bias.float()).to(dtype)


_LAYER = nullcontext()
