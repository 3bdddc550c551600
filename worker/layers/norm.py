"""Norms over the hidden size, or over the size of a head."""

from abc import abstractmethod
from collections.abc import Iterator

import torch

from kernels.cpu.elementwise.records import LayerNormRecord, NormRecord
from kernels.cpu.elementwise.row_kernels import RowKernels, row_grain
from kernels.ops.layers.layer_norm import layer_norm
from kernels.ops.layers.rms_norm import add_rms_norm, rms_norm
from worker.layers.base import Weight, WeightOwner
from worker.lowering.builder import ProgramBuilder
from worker.parallel import Placement


class Norm(WeightOwner):
    """A norm over the last dimension of [..., E]."""

    @abstractmethod
    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns norm(x + residual) and x + residual. residual: None stands for zeros."""

    @abstractmethod
    def lower(
        self, builder: ProgramBuilder, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See add(). The sum replaces the residual in its buffer."""


class RMSNorm(Norm):
    """Root-mean-square norm, by itself or after the residual addition."""

    def __init__(self, width: int, eps: float, place: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.weight = place.empty(width)
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Norms with the compiled kernel."""
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] -> [..., E]."""
        if self.kernels is not None:
            return self.kernels.rms_norm(x, self.weight, self.eps)
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """See Norm."""
        if residual is None:
            return self(x), x
        if self.kernels is not None:
            return self.kernels.add_rms_norm(x, residual, self.weight, self.eps)
        return add_rms_norm(x, residual, self.weight, self.eps)

    @property
    def can_lower(self) -> bool:
        """See Layer."""
        return self.kernels is not None

    def lower(
        self, builder: ProgramBuilder, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Norm."""
        total, width = x if residual is None else residual, self.weight.shape[0]
        normed = builder.buffers.shared("normed", width)
        record = NormRecord(
            x=x.data_ptr(),
            residual=0 if residual is None else residual.data_ptr(),
            weight=self.weight.data_ptr(),
            normed=normed.data_ptr(),
            total=total.data_ptr(),
            width=width,
            eps=self.eps,
            factor=1.0,
            heads=1,
            stride=x.itemsize * width,
        )
        builder.put(builder.rows.norm, record, row_grain(width))
        return normed, total

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules; see WeightOwner."""
        (name,) = names
        yield Weight(f"{name}.weight", tuple(self.weight.shape), self.weight)


class LayerNorm(Norm):
    """Layer norm with a bias, or without parameters."""

    def __init__(self, width: int, eps: float, place: Placement, affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = place.empty(width) if affine else None
        self.bias = place.empty(width) if affine else None
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Norms with the compiled kernel if there are parameters."""
        self.kernels = None if self.weight is None else kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] -> [..., E]."""
        if self.kernels is not None and self.weight is not None and self.bias is not None:
            return self.kernels.layer_norm(x, None, self.weight, self.bias, self.eps)[0]
        return layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """See Norm."""
        if self.kernels is not None and self.weight is not None and self.bias is not None:
            return self.kernels.layer_norm(x, residual, self.weight, self.bias, self.eps)
        total = x if residual is None else residual + x
        return self(total), total

    @property
    def can_lower(self) -> bool:
        """See Layer."""
        return self.kernels is not None

    def lower(
        self, builder: ProgramBuilder, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Norm."""
        assert self.weight is not None and self.bias is not None
        total, width = x if residual is None else residual, self.weight.shape[0]
        normed = builder.buffers.shared("normed", width)
        record = LayerNormRecord(
            x=x.data_ptr(),
            residual=0 if residual is None else residual.data_ptr(),
            weight=self.weight.data_ptr(),
            bias=self.bias.data_ptr(),
            normed=normed.data_ptr(),
            total=total.data_ptr(),
            width=width,
            eps=self.eps,
        )
        builder.put(builder.rows.layer, record, row_grain(width))
        return normed, total

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules; see WeightOwner."""
        (name,) = names
        if self.weight is not None and self.bias is not None:
            yield Weight(f"{name}.weight", tuple(self.weight.shape), self.weight)
            yield Weight(f"{name}.bias", tuple(self.bias.shape), self.bias)
