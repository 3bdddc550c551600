"""An adapter on a CUDA device, as kernels.triton.adapters.adapt reads it.

Its table is int64. First an entry of two words for each layer: how many words behind the entry the records of
its parts are, and how many parts there are. Then the records, FIELDS words each: addresses of a and b, r,
first output, number of outputs, scale (bits of a float32), and whether a and b are float32 (1) or bfloat16
(0), which they are where all values of a matrix are. a is [r, K]; b is [N, r], with zeros up to a multiple of
RANKS, so that its rows are aligned.

An address of an entry is as good as one of the table: it is that of the layers from there on.
"""

import struct
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from kernels.ops.layers.adapters import LayerParts, narrowed

ENTRY, FIELDS = 2, 8
"""Words of an entry, and of a record."""
RANKS = 16
"""Values of a rank that a program computes at a time."""
_ALIGNMENT = 16
"""Of matrices, in bytes."""


class DeviceAdapter:
    """The AdapterWeights of a CUDA device."""

    def __init__(self, layers: Sequence[LayerParts], device: torch.device) -> None:
        """layers: by the number of the layer; parts that share `a`, the same tensor object, share its
        memory, as those that share `b` do. The copies are done when this returns; other threads may launch
        steps meanwhile. Raises MemoryError."""
        parts = [part for layer in layers for part in layer]
        matrices = {id(part.a): narrowed(part.a).contiguous() for part in parts}
        for part in parts:
            matrices[id(part.b)] = narrowed(F.pad(part.b, (0, -part.b.shape[1] % RANKS))).contiguous()
        entries, records = list[int](), list[int]()
        try:
            held, addresses = _to_device_together(list(matrices.values()), device)
            placed = dict(zip(matrices, zip(addresses, matrices.values(), strict=True), strict=True))
            for number, layer in enumerate(layers):
                entries += (ENTRY * (len(layers) - number) + len(records), len(layer))
                for part in layer:
                    (a, a_held), (b, b_held) = placed[id(part.a)], placed[id(part.b)]
                    (scale,) = struct.unpack("i", struct.pack("f", part.scale))
                    wide = (each.dtype == torch.float32 for each in (a_held, b_held))
                    records += (a, b, len(part.a), part.first, len(part.b), scale, *wide)
            words = to_device(torch.tensor(entries + records, dtype=torch.int64), device)
        except torch.OutOfMemoryError as error:
            why = "the device has too little memory beside the KV cache: use a lower --gpu-memory-utilization"
            raise MemoryError(why) from error
        self._table, self.tensors = words, [words, held]
        self._changed = [bool(layer) for layer in layers]

    @property
    def address(self) -> int:
        """Of the table."""
        return self._table.data_ptr()

    @property
    def nbytes(self) -> int:
        """Size in the device's memory."""
        return sum(each.nbytes for each in self.tensors)

    def changes(self, layer: int) -> bool:
        return self._changed[layer]


def _to_device_together(
    matrices: Sequence[torch.Tensor], device: torch.device
) -> tuple[torch.Tensor, list[int]]:
    """Returns a copy of all matrices on a device, and the address of each."""
    flat = (matrix.view(-1).view(torch.uint8) for matrix in matrices)
    pieces = [F.pad(each, (0, -len(each) % _ALIGNMENT)) for each in flat]
    together = to_device(torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8), device)
    addresses, address = list[int](), together.data_ptr()
    for piece in pieces:
        addresses.append(address)
        address += piece.nbytes
    return together, addresses


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a copy on a device, by a stream of its own, beside the steps. It is done when this returns.
    Memory of one that is dropped is not used again before the steps that were launched by then."""
    if device.type != "cuda":
        return tensor.to(device)
    steps, stream = torch.cuda.default_stream(device), torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        copy = tensor.pin_memory().to(device, non_blocking=True)
    stream.synchronize()
    copy.record_stream(steps)
    return copy
