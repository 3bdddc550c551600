"""Adapters (LoRA, arXiv 2106.09685): what rows of a step add to the outputs of a linear layer.

    t[j] = sum_k a[j, k] x[k]      float32, k ascending
    t[j] = t[j] * scale            float32
    d[n] = sum_j b[n, j] t[j]      float32, j ascending
    y[n] = round(y[n] + d[n])      to y's dtype, as the layer's own product left it

The sums of the compiled kernels (kernels.cpu.adapters) are in this order, each product added with one
rounding, so that a token has the same bits alone and beside others. A token without an adapter is not
touched. The factor is not part of b, which would round it where it is no power of two.

In a mixture of experts each expert is a layer: a pair of a token and an expert takes the place of the token.
The lookup of embeddings is a layer whose x is 1 at the token's id: t[j] = a[j, id]. Of a head y is float32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from kernels.ops.experts.dispatch import Dispatch

MAX_RANK = 256


class LowRank(NamedTuple):
    """What some consecutive outputs of a layer gain."""

    a: torch.Tensor  # [r, K] float32, bfloat16 or float16; r: 1 to MAX_RANK
    b: torch.Tensor  # [N, r], likewise
    scale: float
    first: int  # the first of the outputs


LayerParts = tuple[LowRank, ...]
"""Of one layer; none: the adapter leaves it as it is."""
TILE = 16
"""Tokens of a tile of DeviceAdapters."""


def narrowed(matrix: torch.Tensor) -> torch.Tensor:
    """Returns a matrix in the dtype in which compiled kernels hold it: bfloat16 where that has all of its
    values, else float32."""
    narrow = matrix.to(torch.bfloat16)
    is_exact = matrix.dtype == torch.bfloat16 or torch.equal(narrow.float(), matrix.float())
    return narrow if is_exact else matrix.float()


class AdapterWeights(Protocol):
    """One adapter, in the form that the operations of a platform read (Ops.pack_adapter)."""

    @property
    def address(self) -> int:
        """Where compiled kernels find it; 0: nowhere."""
        ...

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        ...

    def changes(self, layer: int) -> bool:
        """Whether a layer has any parts."""
        ...


@dataclass(frozen=True, eq=False)
class PlainAdapter:
    """The AdapterWeights of torch. layers: by the number of the layer."""

    layers: Sequence[LayerParts]
    address: int = 0

    @property
    def nbytes(self) -> int:
        tensors = {id(each): each.nbytes for parts in self.layers for part in parts for each in part[:2]}
        return sum(tensors.values())

    def changes(self, layer: int) -> bool:
        return bool(self.layers[layer])


@dataclass(frozen=True, eq=False)
class StepAdapters:
    """The adapters of a step's tokens; n of the tokens have one."""

    tokens: torch.Tensor  # [n] int64: index into T, all different, sorted by adapter
    addresses: torch.Tensor  # [n] int64: AdapterWeights.address of each
    groups: Sequence[tuple[AdapterWeights, int]]
    """The adapters in the order of `tokens`, and the number of tokens of each."""

    def at(self, tokens: torch.Tensor) -> "StepAdapters | None":
        """Returns the adapters of some tokens, [A] int64, whose indexes are those into A; None: no token has
        one."""
        size = 1 + max(int(tokens.max()), int(self.tokens.max())) if len(tokens) else 0
        owners = torch.full((size,), -1, dtype=torch.int64)
        if size:
            owners[self.tokens] = torch.arange(len(self.tokens))
        found = owners[tokens]
        order = found.argsort(stable=True)[int((found < 0).sum()) :]
        if not len(order):
            return None
        ends = torch.tensor([count for _, count in self.groups]).cumsum(0)
        counts = torch.searchsorted(ends, found[order], right=True).bincount(minlength=len(ends)).tolist()
        groups = [(weights, count) for (weights, _), count in zip(self.groups, counts, strict=True) if count]
        return StepAdapters(order, self.addresses[found[order]], groups)

    def change(self, layer: int) -> bool:
        """Whether any of them changes a layer."""
        return any(weights.changes(layer) for weights, _ in self.groups)


@dataclass(frozen=True, eq=False)
class DeviceAdapters(StepAdapters):
    """StepAdapters on a CUDA device, at addresses that captured graphs know: there is room for T tokens, and
    `groups` are not known."""

    tiles: torch.Tensor
    """[X, 3] int64: AdapterWeights.address of up to TILE tokens that have the same adapter, where in `tokens`
    they begin, and how many they are. 0: there is no such tile. `addresses` are its first column."""
    spans: torch.Tensor
    """[S, 3] int64: the same of all tokens of each adapter."""
    parts: Sequence[int]
    """Most parts of each layer, by its number."""

    @classmethod
    def of(
        cls, tokens: torch.Tensor, tiles: torch.Tensor, spans: torch.Tensor, parts: Sequence[int]
    ) -> "DeviceAdapters":
        """Returns those of such tensors."""
        return cls(tokens, tiles[:, 0], (), tiles, spans, parts)


def adapt(y: torch.Tensor, x: torch.Tensor, layer: int, adapters: StepAdapters) -> torch.Tensor:
    """Adds to the rows of y [T, N] what their adapters make of x [T, K], in place, and returns y. layer: its
    number."""
    for layers, tokens in _by_adapter(adapters):
        _add(y, x, tokens, layers[layer])
    return y


def adapt_embeddings(
    y: torch.Tensor, token_ids: torch.Tensor, layer: int, adapters: StepAdapters
) -> torch.Tensor:
    """Adds to y [T, E], rows of a table, what their adapters have for the ids [T] int64, in place, and
    returns y. layer: number of the lookup."""
    for layers, tokens in _by_adapter(adapters):
        for a, b, scale, column in layers[layer]:
            _expand(y, a.float()[:, token_ids[tokens]].T * scale, tokens, b, column)
    return y


def adapt_experts(
    y: torch.Tensor, x: torch.Tensor, layer: int, adapters: StepAdapters, order: Dispatch
) -> torch.Tensor:
    """Adds to y [P, N], the products of pairs of tokens and experts, what the tokens' adapters make of x
    [P, K], in place, and returns y. layer: number of the first expert, behind which are the others'."""
    for layers, tokens in _by_adapter(adapters):
        pairs, experts = order.places[tokens].flatten(), order.experts[tokens].flatten()
        for expert in set(experts.tolist()):
            _add(y, x, pairs[experts == expert], layers[layer + expert])
    return y


def _by_adapter(adapters: StepAdapters) -> Iterator[tuple[Sequence[LayerParts], torch.Tensor]]:
    """Yields the layers of each adapter, and its tokens."""
    first = 0
    for weights, count in adapters.groups:
        assert isinstance(weights, PlainAdapter)
        yield weights.layers, adapters.tokens[first : first + count]
        first += count


def _add(y: torch.Tensor, x: torch.Tensor, rows: torch.Tensor, parts: LayerParts) -> None:
    """Adds what the parts make of some rows."""
    for a, b, scale, column in parts:
        _expand(y, F.linear(x[rows].float(), a.float()) * scale, rows, b, column)


def _expand(y: torch.Tensor, t: torch.Tensor, rows: torch.Tensor, b: torch.Tensor, column: int) -> None:
    columns = slice(column, column + len(b))
    y[rows, columns] = (y[rows, columns].float() + F.linear(t, b.float())).to(y.dtype)
