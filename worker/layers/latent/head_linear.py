"""Linear layers with a matrix of its own for each head."""

from collections.abc import Iterator, Sequence

import torch

from worker.layers.base import Layer, Weight
from worker.layers.matrix import Matrix, PlainMethod
from worker.parallel import Placement


class HeadMatrix(Matrix):
    """The matrix of one head: some rows of a matrix of the checkpoint that holds those of all heads."""

    def __init__(self, rows: slice, stored: tuple[int, int], place: Placement, transposed: bool) -> None:
        """stored: shape of the checkpoint's matrix. transposed: its rows are this one's inputs."""
        sizes = rows.stop - rows.start, stored[1]
        super().__init__(place.empty(*(reversed(sizes) if transposed else sizes)))
        self.rows, self.stored, self.transposed = rows, stored, transposed

    def weights(self, *names: str) -> Iterator[Weight]:
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
                matrix.method = PlainMethod(torch.nn.Parameter(weight, requires_grad=False))
        for head, matrix in enumerate(matrices):
            self.add_module(str(head), matrix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H, in] -> [T, H, out]."""
        return self.ops.head_linear(x, self.matrices, self.stacked)
