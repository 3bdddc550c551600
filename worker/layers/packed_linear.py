"""Layers around one weight matrix, which a fast kernel may keep in a form of its own."""

import torch

from kernels.cpu.elementwise.row_kernels import RowKernels
from kernels.cpu.matmul.int8 import QuantizedWeight, quantize_weight
from kernels.cpu.matmul.packed12 import CompactWeight, compact_weight
from kernels.ops.layers.linear import PackedWeight, linear
from worker.layers.base import WeightOwner


class Matrix(WeightOwner):
    """A weight [out, in] and perhaps a bias, and their product with an input.

    Loading fills `weight`. After use_kernels() it is gone, and `packed` holds the same numbers, or what
    quantization leaves of them.
    """

    def __init__(
        self, weight: torch.nn.Parameter, bias: torch.nn.Parameter | None = None, adds_bias: bool = True
    ) -> None:
        """adds_bias: False leaves the bias to another rank."""
        super().__init__()
        self.weight, self.bias, self.adds_bias = weight, bias, adds_bias
        self.packed: CompactWeight | PackedWeight | QuantizedWeight | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Packs the weight."""
        pack = quantize_weight if kernels.quantized else compact_weight
        self.packed = pack(self.weight, self.bias if self.adds_bias else None, kernels.arena)
        del self.weight

    def product(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[T, in] -> [T, out], with the bias if it is ours. wide: in float32."""
        if self.packed is not None:
            return self.packed.multiply(x, wide)
        return linear(x, self.weight, self.bias if self.adds_bias else None, wide)
