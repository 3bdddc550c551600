"""Packs an adapter for kernels.cpu.adapters.adapt."""

import ctypes
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from kernels.cpu.adapters.records import STRIP, AdaptedLayer, AdaptedPart
from kernels.ops.layers.adapters import MAX_RANK, LayerParts, LowRank, narrowed


class PackedAdapter:
    """The AdapterWeights of compiled kernels. Matrices lie in the order in which they are read."""

    def __init__(self, layers: Sequence[LayerParts]) -> None:
        """layers: by the number of the layer. Parts of a layer that follow one another and share `a`, the
        same tensor object, share its product."""
        matrices, addresses = list[torch.Tensor](), list[tuple[AdaptedPart, str]]()
        self._parts = [(AdaptedPart * max(1, len(parts)))() for parts in layers]
        self._layers = (AdaptedLayer * max(1, len(layers)))()
        for layer, packed, parts in zip(self._layers, self._parts, layers, strict=False):
            layer.parts, layer.count = ctypes.addressof(packed), len(parts)
            before: LowRank | None = None
            for number, part in enumerate(parts):
                (rank, _), columns = part.a.shape, part.b.shape[0]
                assert rank == part.b.shape[1] <= MAX_RANK
                to = AdaptedPart.at(layer.parts, number)
                to.rank, to.first, to.columns, to.scale = rank, part.first, columns, part.scale
                for name, matrix in (("a", part.a), ("b", part.b)):
                    if name == "b" or before is None or before.a is not matrix or before.scale != part.scale:
                        packed_matrix, is_wide = strips(matrix)
                        setattr(to, f"{name}_is_wide", is_wide)
                        matrices.append(packed_matrix)
                        addresses.append((to, name))
                before = part
        self._words = torch.cat(matrices) if matrices else torch.empty(0, dtype=torch.int32)
        address = self._words.data_ptr()
        for (to, name), matrix in zip(addresses, matrices, strict=True):
            setattr(to, name, address)
            address += matrix.nbytes

    @property
    def address(self) -> int:
        """Of an AdaptedLayer for each layer."""
        return ctypes.addressof(self._layers)

    @property
    def nbytes(self) -> int:
        """Size of the weights in memory."""
        return self._words.nbytes

    def changes(self, layer: int) -> bool:
        return bool(self._layers[layer].count)


def strips(matrix: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Returns a matrix [N, K] in the form of AdaptedPart, words of 32 bits, and whether it is float32."""
    held, (rows, inputs) = narrowed(matrix), matrix.shape
    is_wide = held.dtype == torch.float32
    padded = F.pad(held, (0, inputs % 2, 0, -rows % STRIP))
    pairs = padded.view(-1, STRIP, padded.shape[1] // 2, 2)
    order = (0, 2, 3, 1) if is_wide else (0, 2, 1, 3)
    return pairs.permute(order).contiguous().view(-1).view(torch.int32), is_wide
