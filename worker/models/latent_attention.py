"""Builds latent attention from its sizes. Rows of query and latent projections are ordered as
worker.layers.latent.attention wants them: rotary parts in the order in which kernels rotate."""

from kernels.api import LatentSpec
from worker.config.decoder import DecoderConfig, LatentConfig
from worker.layers.attention.rotary import rotary_order
from worker.layers.latent.attention import CompressedQueries, LatentAttention
from worker.layers.latent.head_linear import HeadLinear, HeadMatrix
from worker.layers.linear import ColumnLinear, Part, RowLinear
from worker.layers.norm import RMSNorm
from worker.parallel import Placement


def latent_attention(
    config: DecoderConfig, latent: LatentConfig, layer: int, place: Placement
) -> LatentAttention:
    """Returns the attention part of a block. Biases are those of `output_bias`: of the projections that
    compress, and of the last one."""
    hidden, heads, group = config.hidden_size, config.num_heads, place.group
    rotary = rotary_order(config.ropes[layer], latent.rotary_dim) or tuple(range(latent.rotary_dim))
    rank, bias = latent.rank, config.output_bias
    kept = rank + latent.rotary_dim
    order = (*range(rank), *(rank + value for value in rotary))
    up_rows = latent.plain_dim + latent.value_dim  # of a head, in the matrix that expands latents
    stored, local = (heads * up_rows, rank), range(heads)[group.slice(heads)]

    def matrices(first: int, length: int, transposed: bool) -> HeadLinear:
        starts = (head * up_rows + first for head in local)
        rows = (slice(start, start + length) for start in starts)
        return HeadLinear([HeadMatrix(of_head, stored, place, transposed) for of_head in rows], place)

    return LatentAttention(
        _queries(config, latent, rotary, place),
        ColumnLinear(hidden, (Part(kept, slice(0, kept), order),), bias, place),
        RMSNorm(rank, latent.norm_eps, place),
        matrices(0, latent.plain_dim, transposed=True),
        matrices(latent.plain_dim, latent.value_dim, transposed=False),
        RowLinear(heads * latent.value_dim, hidden, bias, place),
        LatentSpec(rank, latent.rotary_dim),
        config.attention_scale or (latent.plain_dim + latent.rotary_dim) ** -0.5,
    )


def _queries(
    config: DecoderConfig, latent: LatentConfig, rotary: tuple[int, ...], place: Placement
) -> ColumnLinear | CompressedQueries:
    """Returns the projections of queries. The checkpoint has a head's plain values before its rotary ones."""
    plain, width = latent.plain_dim, latent.plain_dim + latent.rotary_dim
    length, local = config.num_heads * width, range(place.group.split(config.num_heads))
    order = (
        *(head * width + plain + value for head in local for value in rotary),
        *(head * width + value for head in local for value in range(plain)),
    )
    parts = (Part(length, place.group.slice(length), order),)
    if latent.query_rank is None:
        return ColumnLinear(config.hidden_size, parts, False, place)
    compressed = latent.query_rank
    return CompressedQueries(
        ColumnLinear(
            config.hidden_size, (Part(compressed, slice(0, compressed)),), config.output_bias, place
        ),
        RMSNorm(compressed, latent.norm_eps, place),
        ColumnLinear(compressed, parts, False, place),
    )
