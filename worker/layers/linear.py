"""Linear layers in the forms that tensor parallelism needs.

    column   y = x @ W.T       each rank holds some rows of W: y is split, x is whole
    row      y = x @ W.T       each rank holds some columns of W: x is split, and the ranks' partial sums,
                               float32, are added before the bias (ParallelGroup.sum), in an order that
                               does not depend on their number (kernels.ops.layers.leaves)
    qkv      a column layer whose parts are split by heads

Several projections of one input are fused into one weight, so that they are one matrix product. The
checkpoint may hold them separately (q_proj, k_proj, v_proj) or fused (GPT-2's c_attn).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch

from kernels.api import InputBatch, SumOrder, WeightForms
from worker.layers.base import Weight
from worker.layers.matrix import AdaptedMatrix, Matrix, PlainMethod, ShareMethod
from worker.parallel import Placement


@dataclass(frozen=True)
class Part:
    """One projection of a fused layer: its rows in the checkpoint, and which of them this rank holds."""

    length: int
    local: slice
    order: tuple[int, ...] = ()  # see Weight

    @property
    def held(self) -> int:
        """Rows that this rank holds: those of `order`, if it names some of them alone."""
        return len(self.order) or int(self.local.stop - self.local.start)


class ColumnLinear(Matrix):
    """x [T, in] -> [T, sum of the parts' held rows]: the parts side by side."""

    takes_adapters = True

    def __init__(
        self,
        in_features: int,
        parts: tuple[Part, ...],
        bias: bool,
        place: Placement,
        transposed: bool = False,
        module_parts: tuple[int, ...] = (),
    ) -> None:
        """transposed: the checkpoint stores the weight as [in, out]. module_parts: how many each of several
        modules of the checkpoint has; empty: one each."""
        held = sum(part.held for part in parts)
        super().__init__(place.empty(held, in_features), place.empty(held) if bias else None)
        self.in_features, self.parts, self.transposed = in_features, parts, transposed
        self.sum_order = SumOrder(sum(part.length for part in parts))
        self.module_parts = module_parts or (1,) * len(parts)

    @property
    def adapted_matrices(self) -> tuple[AdaptedMatrix, ...]:
        return (AdaptedMatrix(self.in_features, tuple(part.held for part in self.parts)),)

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, in] -> [T, out]."""
        return self.adapted(self.product(x), x, batch)

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name per module that the checkpoint has of this layer, or one for all parts if it has them
        fused."""
        counts = self.module_parts if len(names) > 1 else (len(self.parts),)
        parts, first = iter(self.parts), 0
        for name, count in zip(names, counts, strict=True):
            of_module = tuple(islice(parts, count))
            yield from self._of_module(name, of_module, first)
            first += sum(part.held for part in of_module)

    def _of_module(self, name: str, parts: tuple[Part, ...], first: int) -> Iterator[Weight]:
        """first: row of this layer's weight where the module's begin."""
        length, begin = sum(part.length for part in parts), 0
        for part in parts:
            rows = slice(begin + part.local.start, begin + part.local.stop)
            target = slice(first, first + part.held)
            if self.transposed:
                shape, where = (self.in_features, length), (slice(None), rows)
            else:
                shape, where = (length, self.in_features), (rows, slice(None))
            yield Weight(f"{name}.weight", shape, self.weight[target], where, self.transposed, part.order)
            if self.bias is not None:
                yield Weight(f"{name}.bias", (length,), self.bias[target], (rows,), order=part.order)
            begin += part.length
            first += part.held


def column_linear(
    in_features: int, out_features: tuple[int, ...], bias: bool, place: Placement, transposed: bool = False
) -> ColumnLinear:
    """Returns a column layer whose parts are each split evenly over the ranks."""
    parts = tuple(Part(length, place.group.slice(length)) for length in out_features)
    return ColumnLinear(in_features, parts, bias, place, transposed)


def qkv_linear(
    in_features: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    bias: bool,
    place: Placement,
    transposed: bool = False,
    head_order: tuple[int, ...] = (),
) -> ColumnLinear:
    """Returns query, key and value projections. With more ranks than KV heads, several ranks hold the same KV
    head. head_order: of the values of a query's and a key's head; see rotary_order() of
    worker.layers.attention.rotary."""
    kv_heads = place.group.units(num_kv_heads)
    local = slice(kv_heads.start * head_dim, kv_heads.stop * head_dim)
    query_order = order_of_heads(head_order, place.group.split(num_heads))
    query = Part(num_heads * head_dim, place.group.slice(num_heads * head_dim), query_order)
    key = Part(num_kv_heads * head_dim, local, order_of_heads(head_order, len(kv_heads)))
    value = Part(num_kv_heads * head_dim, local)
    return ColumnLinear(in_features, (query, key, value), bias, place, transposed)


def order_of_heads(order: tuple[int, ...], num_heads: int) -> tuple[int, ...]:
    """Returns the order of the values of several heads, each in the same order; empty: as they stand."""
    return tuple(head * len(order) + at for head in range(num_heads) for at in order)


class RowLinear(Matrix):
    """x [T, in / ranks] -> [T, out], summed over the ranks."""

    takes_adapters = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        place: Placement,
        transposed: bool = False,
        units: int | None = None,
    ) -> None:
        """transposed: the checkpoint stores the weight as [in, out]. units: the number of parts of the
        inputs that are never split, such as heads; None: each input is one."""
        weight = place.empty(out_features, place.group.split(in_features))
        is_whole = place.group.size == 1
        super().__init__(weight, place.empty(out_features) if bias else None, adds_bias=is_whole)
        self.group, self.transposed = place.group, transposed
        self.in_features, self.out_features = in_features, out_features
        self._units = in_features if units is None else units
        leaves = self._all_leaves(1)
        self.sum_order = SumOrder(out_features, max(1, leaves // place.group.size) if leaves > 1 else 0)
        self._largest = torch.zeros(out_features) if place.measures_rows and not is_whole else None

    @property
    def adapted_matrices(self) -> tuple[AdaptedMatrix, ...]:
        """Of all inputs, also where this rank's weight has some of them."""
        return (AdaptedMatrix(self.in_features, (self.out_features,)),)

    @property
    def is_undivided(self) -> bool:
        """Whether each rank has all inputs: they are one unit."""
        return self._units == 1

    def leaves(self, multiple: int) -> int:
        return max(1, self._all_leaves(multiple) // self.group.size)

    def _all_leaves(self, multiple: int) -> int:
        """Returns of how many leaves the products of one rank are the sum."""
        return WeightForms.count_leaves(self.in_features, self._units, multiple)

    def most_ranks(self, forms: WeightForms) -> int:
        """Returns among how many ranks the leaves of a product can be divided."""
        if self._is_exact(forms):
            return self.in_features
        return self._all_leaves(self.method.leaf_multiple(forms))

    def _is_exact(self, forms: WeightForms) -> bool:
        """Whether the matrix becomes integers whose sums are exact in any order."""
        return forms.share is not None and isinstance(self.method, PlainMethod)

    def pack(self, forms: WeightForms) -> None:
        if self._largest is None or forms.share is None:
            super().pack(forms)
        else:
            self.method = ShareMethod(forms.share(self.weight, largest=self._largest))

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, in / ranks] -> [T, out]."""
        if self.group.size == 1:
            return self.adapted(self.product(x), x, batch)
        if isinstance(self.method, ShareMethod):
            y = self.ops.linear_over_ranks(x, self.method.weight, self.bias, self.group)
        else:
            y = self.ops.add_partials(self.product(x, wide=True), self.bias, x.dtype, self.group)
        if self.number is None or batch.adapters is None:
            return y
        # An adapter's sums over the inputs are those of one rank: each rank computes them from all inputs.
        return self.adapted(y, self.group.gather_columns(x), batch)

    def weights(self, *names: str) -> Iterator[Weight]:
        (name,) = names
        local = self.group.slice(self.in_features)
        if self.transposed:
            shape, part = (self.in_features, self.out_features), (local, slice(None))
        else:
            shape, part = (self.out_features, self.in_features), (slice(None), local)
        weight = Weight(f"{name}.weight", shape, self.weight, part, self.transposed)
        yield replace(weight, largest=self._largest)
        if self.bias is not None:
            yield Weight(f"{name}.bias", (self.out_features,), self.bias)
