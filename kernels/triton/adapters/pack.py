"""An adapter on a CUDA device, as kernels.triton.adapters.adapt reads it.

Its table is int64: P, the most parts of a layer, then [layers, P, FIELDS]: of each part the addresses of a
and b, r (0: there is no such part), first output, number of outputs, scale (bits of a float32), and whether a
and b are float32 (1) or bfloat16 (0), which they are where all values of a matrix are. a is [r, K]; b is
[N, r], with zeros up to a multiple of RANKS, so that its rows are aligned.
"""

import struct
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from kernels.ops.layers.adapters import LayerParts

FIELDS = 8
RANKS = 16
"""Values of a rank that a program computes at a time."""


class DeviceAdapter:
    """The AdapterWeights of a CUDA device."""

    def __init__(self, layers: Sequence[LayerParts], device: torch.device) -> None:
        """layers: by the number of the layer; parts that share `a`, the same tensor object, share its
        memory. The copies are done when this returns; other threads may launch steps meanwhile. Raises
        MemoryError."""
        given = [part for parts in layers for part in parts]
        matrices = {id(part.a): part.a for part in given}
        matrices |= {id(part.b): F.pad(part.b, (0, -part.b.shape[1] % RANKS)) for part in given}
        most = max(map(len, layers), default=0)
        table = torch.zeros((len(layers), most, FIELDS), dtype=torch.int64)
        try:
            copies = to_device([_held(each) for each in matrices.values()], device)
        except torch.OutOfMemoryError as error:
            why = "the device has too little memory beside the KV cache: use a lower --gpu-memory-utilization"
            raise MemoryError(why) from error
        held = dict(zip(matrices, copies, strict=True))
        for number, parts in enumerate(layers):
            for index, part in enumerate(parts):
                a, b = held[id(part.a)], held[id(part.b)]
                (scale,) = struct.unpack("i", struct.pack("f", part.scale))
                sizes = len(part.a), part.first, len(part.b), scale
                wide = a.dtype == torch.float32, b.dtype == torch.float32
                table[number, index] = torch.tensor([a.data_ptr(), b.data_ptr(), *sizes, *wide])
        (words,) = to_device([torch.cat((torch.tensor([most]), table.view(-1)))], device)
        self._table, self.tensors = words, [words, *copies]
        self._changed = [bool(parts) for parts in layers]

    @property
    def address(self) -> int:
        """Of the table."""
        return self._table.data_ptr()

    @property
    def nbytes(self) -> int:
        """Size in the device's memory."""
        return sum(each.nbytes for each in self.tensors)

    def changes(self, layer: int) -> bool:
        """Whether a layer has any parts."""
        return self._changed[layer]


def _held(matrix: torch.Tensor) -> torch.Tensor:
    """Returns a matrix in the dtype in which it is held, contiguous."""
    narrow = matrix.to(torch.bfloat16)
    is_wide = matrix.dtype != torch.bfloat16 and not torch.equal(narrow.float(), matrix.float())
    return (matrix.float() if is_wide else narrow).contiguous()


def to_device(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Returns copies on a device, by a stream of their own, beside the steps. They are done when this
    returns. Memory of one that is dropped is not used again before the steps that were launched by then."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    steps, stream = torch.cuda.default_stream(device), torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        copies = [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
    stream.synchronize()
    for copy in copies:
        copy.record_stream(steps)
    return copies
