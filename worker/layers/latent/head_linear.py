"""Linear layers with a matrix of its own for each head."""

from collections.abc import Iterator, Sequence

import torch

from kernels.cpu.attention.records import CopyHeadsRecord
from kernels.cpu.elementwise.row_kernels import row_grain
from worker.layers.base import Layer, Weight
from worker.layers.packed_linear import Matrix
from worker.lowering.builder import ProgramBuilder
from worker.parallel import Placement


class HeadMatrix(Matrix):
    """The matrix of one head: some rows of a matrix of the checkpoint that holds those of all heads."""

    def __init__(self, rows: slice, stored: tuple[int, int], place: Placement, transposed: bool) -> None:
        """stored: shape of the checkpoint's matrix. transposed: its rows are this one's inputs."""
        sizes = rows.stop - rows.start, stored[1]
        super().__init__(place.empty(*(reversed(sizes) if transposed else sizes)))
        self.rows, self.stored, self.transposed = rows, stored, transposed

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules; see WeightOwner."""
        (name,) = names
        part = self.rows, slice(None)
        yield Weight(f"{name}.weight", self.stored, self.weight, part, self.transposed)


class HeadLinear(Layer):
    """x [T, H, in] -> [T, H, out]: each head by its own matrix. The matrices are its parts "0", "1", ... On a
    CUDA device these are parts of one tensor, unless they may be held in few bits: then all heads are one
    product, as those of experts are."""

    def __init__(self, matrices: Sequence[HeadMatrix], place: Placement) -> None:
        """matrices: of the heads of this rank."""
        super().__init__()
        self.matrices = tuple(matrices)
        self.stacked: torch.Tensor | None = None  # [H, out, in]
        if place.stacks_experts and not place.later:
            self.stacked = torch.stack([matrix.weight for matrix in matrices])
            for matrix, weight in zip(matrices, self.stacked, strict=True):
                matrix.weight = torch.nn.Parameter(weight, requires_grad=False)
        for head, matrix in enumerate(matrices):
            self.add_module(str(head), matrix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H, in] -> [T, H, out]."""
        if self.stacked is not None:
            return self._grouped(x, self.stacked)
        return torch.stack([matrix.product(x[:, head]) for head, matrix in enumerate(self.matrices)], 1)

    def _grouped(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """forward() on a CUDA device."""
        from kernels.triton.experts.dispatch import order_by_head
        from kernels.triton.experts.grouped_linear import grouped_linear

        tokens, heads, width = x.shape
        order = order_by_head(tokens, heads, x.dtype, x.device)
        y = grouped_linear(x.reshape(-1, width), weight, None, order, order.tokens)
        return y.view(heads, tokens, -1).transpose(0, 1)

    def lower(self, builder: ProgramBuilder, x: torch.Tensor) -> torch.Tensor:
        """x: buffer of [H, M, in]. Returns one of [H, M, out]."""
        packed = [matrix.packed for matrix in self.matrices if matrix.packed is not None]
        (out_features,) = {weight.out_features for weight in packed}
        out = builder.buffers.output(len(x) * out_features).view(len(x), -1, out_features)
        for weight, x_of_head, out_of_head in zip(packed, x, out, strict=True):
            builder.product(weight, x_of_head, out_of_head)
        return out


def lower_copy(builder: ProgramBuilder, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Puts a copy of the heads of all rows. x, out: views [M, H, D] of buffers, of any strides between rows
    and heads; D values are a multiple of 4 bytes. Returns out."""
    from kernels.cpu.attention.latent.copy_heads import copy_heads  # compiles, the first time

    _, heads, width = x.shape
    record = CopyHeadsRecord(
        x=x.data_ptr(),
        out=out.data_ptr(),
        heads=heads,
        head_bytes=x.itemsize * width,
        x_stride=x.itemsize * x.stride(0),
        x_pitch=x.itemsize * x.stride(1),
        out_stride=x.itemsize * out.stride(0),
        out_pitch=x.itemsize * out.stride(1),
    )
    builder.put(copy_heads, record, row_grain(heads * width))
    return out
