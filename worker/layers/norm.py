"""Norms over the hidden size, or over the size of a head."""

from abc import abstractmethod
from collections.abc import Iterator

import torch

from kernels.cpu.elementwise.records import LayerNormRecord, NormRecord
from kernels.cpu.elementwise.row_kernels import RowKernels, row_grain
from kernels.ops.layers.layer_norm import layer_norm
from kernels.ops.layers.rms_norm import add_rms_norm, rms_norm
from worker.layers.base import Layer, Weight, WeightOwner
from worker.lowering.builder import ProgramBuilder
from worker.parallel import Placement


class Norm(WeightOwner):
    """A norm over the last dimension of [..., E]."""

    @abstractmethod
    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns norm(x + residual) and x + residual. residual: None stands for zeros."""

    @abstractmethod
    def lower(
        self, builder: ProgramBuilder, x: torch.Tensor, residual: torch.Tensor | None, name: str = "normed"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum replaces the residual in its buffer. name: of the shared buffer of the norm."""


class RMSNorm(Norm):
    """Root-mean-square norm, by itself or after the residual addition."""

    def __init__(
        self,
        width: int,
        eps: float,
        place: Placement,
        offset: float = 0.0,
        residual_scale: float = 1.0,
        order: tuple[int, ...] = (),
    ) -> None:
        """offset: is added to the weight. residual_scale: of what is added to the residual stream. order: see
        Weight."""
        super().__init__()
        self.eps, self.offset, self.residual_scale, self.order = eps, offset, residual_scale, order
        self.weight = place.empty(width)
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Norms with the compiled kernel."""
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] -> [..., E]."""
        if self.kernels is not None:
            return self.kernels.rms_norm(x, self.weight, self.eps, self.offset)
        return rms_norm(x, self.weight, self.eps, self.offset)

    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return self(x), x
        numbers = self.weight, self.eps, self.offset, self.residual_scale
        if self.kernels is not None:
            return self.kernels.add_rms_norm(x, residual, *numbers)
        return add_rms_norm(x, residual, *numbers)

    @property
    def can_lower(self) -> bool:
        return self.kernels is not None

    def lower(
        self, builder: ProgramBuilder, x: torch.Tensor, residual: torch.Tensor | None, name: str = "normed"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total, width = x if residual is None else residual, self.weight.shape[0]
        normed = builder.buffers.shared(name, width)
        record = NormRecord(
            x=x.data_ptr(),
            residual=0 if residual is None else residual.data_ptr(),
            weight=self.weight.data_ptr(),
            normed=normed.data_ptr(),
            total=total.data_ptr(),
            width=width,
            eps=self.eps,
            weight_offset=self.offset,
            factor=self.residual_scale,
            heads=1,
            stride=x.itemsize * width,
        )
        builder.put(builder.rows.norm, record, row_grain(width))
        return normed, total

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules; see WeightOwner."""
        (name,) = names
        yield Weight(f"{name}.weight", tuple(self.weight.shape), self.weight, order=self.order)


class UnitNorm(Layer):
    """Root-mean-square norm of heads without a parameter: its weight is 1."""

    def __init__(self, width: int, eps: float, place: Placement) -> None:
        super().__init__()
        self.eps, self.offset = eps, 0.0
        self.weight = torch.ones(width, dtype=place.dtype, device=place.device)
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Norms with the compiled kernel."""
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D]."""
        if self.kernels is not None:
            return self.kernels.rms_norm(x, self.weight, self.eps, self.offset)
        return rms_norm(x, self.weight, self.eps, self.offset)

    @property
    def can_lower(self) -> bool:
        """Programs norm heads where they attend (worker.layers.attention.attention)."""
        return self.kernels is not None


HeadNormLayers = tuple[RMSNorm, RMSNorm] | tuple[UnitNorm, UnitNorm]
"""The norms of queries and of keys."""


class LayerNorm(Norm):
    """Layer norm with a weight and a bias, with a weight alone, or without parameters."""

    def __init__(
        self, width: int, eps: float, place: Placement, affine: bool = True, has_bias: bool = True
    ) -> None:
        super().__init__()
        self.eps, self.has_bias = eps, has_bias
        self.weight = place.empty(width) if affine else None
        self.bias = self._bias(width, place) if affine else None
        self.kernels: RowKernels | None = None

    def _bias(self, width: int, place: Placement) -> torch.Tensor:
        """Returns the parameter, or zeros in its place."""
        if self.has_bias:
            return place.empty(width)
        return torch.zeros(width, dtype=place.dtype, device=place.device)

    def use_kernels(self, kernels: RowKernels) -> None:
        """Norms with the compiled kernel if there are parameters."""
        self.kernels = None if self.weight is None else kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] -> [..., E]."""
        if self.kernels is not None and self.weight is not None and self.bias is not None:
            return self.kernels.layer_norm(x, None, self.weight, self.bias, self.eps)[0]
        return layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if self.kernels is not None and self.weight is not None and self.bias is not None:
            return self.kernels.layer_norm(x, residual, self.weight, self.bias, self.eps)
        total = x if residual is None else residual + x
        return self(total), total

    @property
    def can_lower(self) -> bool:
        return self.kernels is not None

    def lower(
        self, builder: ProgramBuilder, x: torch.Tensor, residual: torch.Tensor | None, name: str = "normed"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.weight is not None and self.bias is not None
        total, width = x if residual is None else residual, self.weight.shape[0]
        normed = builder.buffers.shared(name, width)
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
            if self.has_bias:
                yield Weight(f"{name}.bias", tuple(self.bias.shape), self.bias)
