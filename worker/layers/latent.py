"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    c[t], k[t]   = norm(A x[t]), rotated(B x[t])      the latent [R] and the rotary key [P], one for all heads
    q[t, h]      = [U_h^T q_plain[t, h], rotated(q_rotary[t, h])]
    p[t, h]      = softmax_j(scale * q[t, h] . [c[j], k[j]])
    out[t]       = O [V_h sum_j p[t, h, j] c[j]]      heads side by side

U_h [N, R] and V_h [D, R] make a head's keys and values of a latent. They are applied to queries and to
what attention has mixed, so that nothing but c and k is kept, and no key or value is ever made (the absorbed
form). Prompts are computed in this form too: then a token has the same bits whether it came with a prompt or
was sampled. For a prompt that takes (2 R + P) / (N + D + P) times the products of attention with keys and
values: 3.4 times in DeepSeek-V3's shape.
"""

from collections.abc import Iterator, Sequence

import torch

from kernels.api import InputBatch, LatentSpec, LayerCache, Rotation
from worker.layers.attention.self_attention import AttentionPart
from worker.layers.base import Layer, Weight
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.matrix import AdaptedMatrix, Matrix, PlainMethod
from worker.layers.norm import RMSNorm
from worker.parallel import Placement


class HeadMatrix(Matrix):
    """The matrix of one head: some rows of a matrix of the checkpoint that holds those of all heads."""

    takes_adapters = True

    def __init__(self, rows: slice, stored: tuple[int, int], place: Placement, transposed: bool) -> None:
        """stored: shape of the checkpoint's matrix. transposed: its rows are this one's inputs."""
        sizes = rows.stop - rows.start, stored[1]
        super().__init__(place.empty(*(reversed(sizes) if transposed else sizes)))
        self.rows, self.stored, self.transposed = rows, stored, transposed

    @property
    def adapted_matrices(self) -> tuple[AdaptedMatrix, ...]:
        outputs, inputs = self.rows.stop - self.rows.start, self.stored[1]
        if self.transposed:
            outputs, inputs = inputs, outputs
        return (AdaptedMatrix(inputs, (outputs,)),)

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

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, H, in] -> [T, H, out]."""
        return self.ops.head_linear(x, self.matrices, self.stacked, batch.adapters)


class CompressedQueries(Layer):
    """up(norm(down(x))): queries of a latent of their own."""

    def __init__(self, down: ColumnLinear, norm: RMSNorm, up: ColumnLinear) -> None:
        super().__init__()
        self.down, self.norm, self.up = down, norm, up

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, out]."""
        return self.up(self.norm(self.down(x, batch)), batch)


class LatentAttention(AttentionPart):
    """The attention part of a block. H: heads of this rank."""

    def __init__(
        self,
        queries: ColumnLinear | CompressedQueries,
        latent: ColumnLinear,
        latent_norm: RMSNorm,
        key_up: HeadLinear,
        value_up: HeadLinear,
        output: RowLinear,
        spec: LatentSpec,
        scale: float,
    ) -> None:
        """queries: [T, E] -> [T, H * P + H * N], the rotary parts of all heads before the others. latent: to
        [T, R + P]. key_up: U_h^T, [T, H, N] -> [T, H, R]. value_up: V_h, [T, H, R] -> [T, H, D]. scale: of
        scores."""
        super().__init__()
        self.queries, self.latent, self.latent_norm = queries, latent, latent_norm
        self.key_up, self.value_up, self.output = key_up, value_up, output
        self.spec, self.scale, self.num_heads = spec, scale, len(key_up.matrices)

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        assert rotation is not None
        heads, rotary = self.num_heads, self.num_heads * self.spec.rotary_dim
        queries, latents = self.queries(x, batch), self.latent(x, batch)
        absorbed = self.key_up(queries[:, rotary:].view(len(x), heads, -1), batch)
        parts = absorbed, queries[:, :rotary], latents
        query, kept = self.ops.latent_heads(*parts, self.latent_norm, rotation)
        mixed = batch.latent_plan(self.spec).store_and_attend(query, kept, cache, self.scale)
        return self.output(self.ops.side_by_side(self.value_up(mixed, batch)), batch)
