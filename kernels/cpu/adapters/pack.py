"""Packs an adapter for kernels.cpu.adapters.adapt."""

import ctypes
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from kernels.cpu.adapters.records import MAX_RANK, STRIP, AdaptedLayer, AdaptedPart
from kernels.ops.layers.adapters import LayerParts


class PackedAdapter:
    """The AdapterWeights of compiled kernels. Values are bfloat16 where all of a matrix are, else float32."""

    def __init__(self, layers: Sequence[LayerParts]) -> None:
        """layers: by the number of the layer. Parts of a layer that follow one another and share `a`, the
        same tensor object, share its product."""
        self._memory: list[object] = []
        self._layers = (AdaptedLayer * max(1, len(layers)))()
        for layer, parts in zip(self._layers, layers, strict=False):
            packed = (AdaptedPart * max(1, len(parts)))()
            for number, part in enumerate(parts):
                shares = (
                    number > 0 and parts[number - 1].a is part.a and parts[number - 1].scale == part.scale
                )
                assert part.a.shape[0] == part.b.shape[1] <= MAX_RANK
                a, b = None if shares else strips(part.a), strips(part.b)
                self._memory += a, b
                packed[number] = AdaptedPart(
                    a=0 if a is None else a.data_ptr(),
                    b=b.data_ptr(),
                    rank=part.a.shape[0],
                    first=part.first,
                    columns=part.b.shape[0],
                    scale=part.scale,
                    a_bytes=0 if a is None else a.itemsize,
                    b_bytes=b.itemsize,
                )
            self._memory.append(packed)
            layer.parts, layer.count = ctypes.addressof(packed), len(parts)

    @property
    def address(self) -> int:
        """Of an AdaptedLayer for each layer."""
        return ctypes.addressof(self._layers)

    @property
    def nbytes(self) -> int:
        """Size of the weights in memory."""
        return sum(each.nbytes for each in self._memory if isinstance(each, torch.Tensor))


def strips(matrix: torch.Tensor) -> torch.Tensor:
    """[R, C] -> [ceil(R / 16), C, 16], bfloat16 or float32."""
    rows, columns = matrix.shape
    narrow = matrix.to(torch.bfloat16)
    exact = matrix.dtype == torch.bfloat16 or torch.equal(narrow.float(), matrix.float())
    padded = F.pad(narrow if exact else matrix.float(), (0, 0, 0, -rows % STRIP))
    return padded.view(-1, STRIP, columns).transpose(1, 2).contiguous()
