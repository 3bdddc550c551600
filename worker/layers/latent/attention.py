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

import torch

from kernels.cpu.attention.block_attention import attention_record
from kernels.cpu.attention.latent.attention import store_record
from kernels.cpu.elementwise.records import NormRecord, RotaryRecord
from kernels.cpu.elementwise.row_kernels import row_grain
from worker.attention.latent import LatentSpec
from worker.attention.plan import LayerCache, Rotation, Scoring
from worker.layers.attention.self_attention import AttentionPart
from worker.layers.base import Layer
from worker.layers.latent.head_linear import HeadLinear, lower_copy
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.norm import RMSNorm
from worker.lowering.builder import ProgramBuilder
from worker.lowering.rotation import LoweredRotation
from worker.model_input import InputBatch


class CompressedQueries(Layer):
    """up(norm(down(x))): queries of a latent of their own."""

    def __init__(self, down: ColumnLinear, norm: RMSNorm, up: ColumnLinear) -> None:
        super().__init__()
        self.down, self.norm, self.up = down, norm, up

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, out]."""
        return self.up(self.norm(self.down(x, batch)), batch)

    def lower(self, builder: ProgramBuilder, x: torch.Tensor) -> torch.Tensor:
        normed, _ = self.norm.lower(builder, self.down.lower(builder, x), None, "queries")
        return self.up.lower(builder, normed)


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
        self.spec, self.scoring, self.num_heads = spec, Scoring(scale), len(key_up.matrices)

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        assert rotation is not None
        tokens, rank, heads = len(x), self.spec.rank, self.num_heads
        queries, latents = self.queries(x, batch), self.latent(x, batch)
        rotary = heads * self.spec.rotary_dim
        rotated = rotation(torch.cat((queries[:, :rotary], latents[:, rank:]), 1).view(tokens, heads + 1, -1))
        both = x.new_empty((tokens, heads + 1, self.spec.head_dim))
        both[:, :heads, :rank] = self.key_up(queries[:, rotary:].view(tokens, heads, -1))
        both[:, heads, :rank] = self.latent_norm(latents[:, :rank])
        both[:, :, rank:] = rotated
        mixed = batch.attention[self.spec].store_and_attend(both, cache, self.scoring)
        return self.output(self.value_up(mixed).flatten(1), batch)

    @property
    def can_lower(self) -> bool:
        """Heads are copied in words of 32 bits."""
        sizes = (self.spec.rank, self.spec.rotary_dim, self.output.in_share // self.num_heads)
        return all(size % 2 == 0 for size in sizes) and super().can_lower

    def lower(
        self,
        builder: ProgramBuilder,
        x: torch.Tensor,
        cache: LayerCache,
        rotation: LoweredRotation | None = None,
    ) -> torch.Tensor:
        assert rotation is not None
        rank, heads, width = self.spec.rank, self.num_heads, self.spec.head_dim
        queries = self.queries.lower(builder, x)
        latents = self._lower_latents(builder, x, rotation)
        rotated = builder.buffers.output(queries.shape[1])
        self._rotate(builder, rotation, (queries, rotated), 0, heads)
        rotary = heads * self.spec.rotary_dim
        query = builder.buffers.output(heads * width)
        by_head = query.view(-1, heads, width)
        absorbed = self.key_up.lower(builder, _heads_first(builder, queries[:, rotary:], heads))
        lower_copy(builder, absorbed.transpose(0, 1), by_head[..., :rank])
        lower_copy(builder, rotated[:, :rotary].view(-1, heads, self.spec.rotary_dim), by_head[..., rank:])
        mixed = self._lower_attention(builder, query, latents, cache)
        values = self.value_up.lower(builder, _heads_first(builder, mixed, heads))
        attended = builder.buffers.output(heads * values.shape[2])
        lower_copy(builder, values.transpose(0, 1), attended.view(-1, heads, values.shape[2]))
        return self.output.lower(builder, attended)

    def _lower_latents(
        self, builder: ProgramBuilder, x: torch.Tensor, rotation: LoweredRotation
    ) -> torch.Tensor:
        """Returns the buffer of what is kept, [M, R + P]."""
        raw, rank, norm = self.latent.lower(builder, x), self.spec.rank, self.latent_norm
        latents = builder.buffers.output(self.spec.head_dim)
        record = NormRecord(
            x=raw.data_ptr(),
            weight=norm.weight.data_ptr(),
            normed=latents.data_ptr(),
            total=raw.data_ptr(),
            width=rank,
            eps=norm.eps,
            weight_offset=norm.offset,
            factor=1.0,
            heads=1,
            stride=raw.itemsize * raw.shape[1],
        )
        builder.put(builder.rows.norm, record, row_grain(rank))
        self._rotate(builder, rotation, (raw, latents), rank, 1)
        return latents

    def _rotate(
        self,
        builder: ProgramBuilder,
        rotation: LoweredRotation,
        buffers: tuple[torch.Tensor, torch.Tensor],
        first: int,
        heads: int,
    ) -> None:
        """From one buffer to another of its shape: so many rotary parts, side by side from value `first`
        on."""
        x, out = buffers
        record = RotaryRecord(
            x=x.data_ptr() + x.itemsize * first,
            stride=x.itemsize * x.shape[1],
            heads=heads,
            head_dim=self.spec.rotary_dim,
            out=out.data_ptr() + x.itemsize * first,
        )
        rotation.add(builder.put(builder.rows.rotary, record, row_grain(heads * self.spec.rotary_dim)))

    def _lower_attention(
        self, builder: ProgramBuilder, query: torch.Tensor, latents: torch.Tensor, cache: LayerCache
    ) -> torch.Tensor:
        """Returns the buffer of what is mixed, [M, H * R]."""
        blocks, heads, rank, (plane,) = builder.blocks, self.num_heads, self.spec.rank, cache
        store = store_record(latents.data_ptr(), latents.itemsize * latents.shape[1], plane, 0)
        stored = builder.put(blocks.store, store, row_grain(self.spec.head_dim))
        out = builder.buffers.output(heads * rank)
        record = attention_record(
            *(query.data_ptr(), out.data_ptr(), (plane, plane), 0),
            (query.itemsize * query.shape[1], out.itemsize * out.shape[1]),
            heads,
            self.scoring.scale,
            builder.buffers.set_number,
            value_dim=rank,
        )
        attended = builder.put(blocks.attend, record, 1, repeatable=True)
        builder.put(blocks.combine, record, 1, repeatable=True)
        builder.attention(self.spec).add_layer(stored, attended, plane)
        return out


def _heads_first(builder: ProgramBuilder, x: torch.Tensor, heads: int) -> torch.Tensor:
    """[M, H * D], of any stride between rows -> a buffer of [H, M, D]."""
    by_head = x.view(len(x), heads, -1)
    out = builder.buffers.output(by_head.shape[1] * by_head.shape[2]).view(heads, len(x), -1)
    lower_copy(builder, by_head, out.transpose(0, 1))
    return out
