"""Layers of a tower that decoders do not have."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from kernels.api import InputBatch, LayerCache, Rotation
from worker.layers.attention.self_attention import AttentionPart
from worker.layers.base import NamedTensors, Weight
from worker.layers.linear import ColumnLinear, Part, RowLinear
from worker.layers.matrix import Matrix
from worker.layers.norm import RMSNorm
from worker.parallel import Placement


class PatchLinear(Matrix):
    """A convolution whose stride is its size, as a product: [N, 3 * F * P * P] -> [N, E], of F frames."""

    keeps_parameter = True

    def __init__(
        self,
        patch_size: int,
        width: int,
        bias: bool,
        place: Placement,
        frames: int = 0,
        *,
        as_matrix: bool = False,
    ) -> None:
        """frames: F; 0: one, which the checkpoint's weight has no dimension for. as_matrix: the checkpoint
        has the matrix."""
        weight = place.empty(width, 3 * max(1, frames) * patch_size**2)
        super().__init__(weight, place.empty(width) if bias else None)
        self._stored: tuple[int, ...] = width, 3, *((frames,) if frames else ()), patch_size, patch_size
        if as_matrix:
            self._stored = tuple(weight.shape)

    def weights(self, *names: str) -> Iterator[Weight]:
        (name,) = names
        yield Weight(f"{name}.weight", self._stored, self.weight)
        if self.bias is not None:
            yield Weight(f"{name}.bias", tuple(self.bias.shape), self.bias)


class ParameterLinear(ColumnLinear):
    """A product with a matrix that checkpoints store as a parameter by itself, as [in, out]."""

    def __init__(self, inputs: int, outputs: int, place: Placement) -> None:
        super().__init__(inputs, (Part(outputs, slice(0, outputs)),), False, place, transposed=True)

    def weights(self, *names: str) -> Iterator[Weight]:
        """names: of the parameter."""
        for name, weight in zip(names, super().weights(*names), strict=True):
            yield replace(weight, name=name)


class LearnedVectors(NamedTensors):
    """Vectors that are neither multiplied by nor split: a class token, or positions."""

    def __init__(self, shape: tuple[int, ...], place: Placement) -> None:
        """shape: in the checkpoint, where the last dimension is that of a vector."""
        super().__init__()
        self.stored = replace(place, arena=None, later=False).empty(*shape)

    @property
    def vectors(self) -> torch.Tensor:
        """[n, E]."""
        return self.stored.view(-1, self.stored.shape[-1])


class ChannelScales(NamedTensors):
    """x * weight, channel by channel."""

    def __init__(self, width: int, place: Placement) -> None:
        super().__init__()
        self.scales = place.empty(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, E] -> [N, E]."""
        return x * self.scales


class TowerAttention(AttentionPart):
    """output(attention(qkv(x))), in which all patches of an image, or of a window, see one another. It keeps
    nothing: in place of a cache it gets the lengths of windows [W], on the host, or nothing."""

    def __init__(
        self,
        qkv: ColumnLinear,
        num_heads: int,
        output: RowLinear,
        norms: tuple[RMSNorm, RMSNorm] | None = None,
    ) -> None:
        """norms: of all queries together, and of all keys."""
        super().__init__()
        self.qkv, self.output, self.norms, self._num_heads = qkv, output, norms, num_heads
        if norms is not None:
            self.query_norm, self.key_norm = norms

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        query, key, value = self._heads(self.qkv(x, batch), rotation)
        lengths, scale = cache[0].tolist() if cache else (), query.shape[2] ** -0.5
        attended = self.ops.full_attention(query, key, value, scale, lengths)
        return self.output(attended.flatten(1), batch)

    def _heads(
        self, qkv: torch.Tensor, rotation: Rotation | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[N, 3 * H * D] -> query, key and value, [N, H, D] each, normed or rotated."""
        count, heads = len(qkv), self._num_heads
        query, key, value = qkv.view(count, 3 * heads, -1).split_with_sizes((heads,) * 3, dim=1)
        if self.norms is not None:
            assert rotation is None, "no family has both"
            query, key = (
                normed(each.flatten(1)).view(count, heads, -1)
                for normed, each in zip(self.norms, (query, key), strict=True)
            )
        elif rotation is not None:
            query_key = rotation(qkv.view(count, 3 * heads, -1)[:, : 2 * heads])
            query, key = query_key.split_with_sizes((heads, heads), dim=1)
        return query, key, value
