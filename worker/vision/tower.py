"""The tower of an encoder of images: a transformer over patches, each image a segment of its own."""

from collections.abc import Collection
from dataclasses import replace
from math import isqrt

import torch

from kernels.api import InputBatch, Rotation
from worker.config.vision import TowerConfig
from worker.layers.base import Layer
from worker.layers.block import AnyBlock, AroundNormBlock, Block
from worker.layers.linear import RowLinear, column_linear, qkv_linear
from worker.layers.mlp import MLP, FeedForward, GatedMLP
from worker.layers.norm import LayerNorm, Norm, RMSNorm
from worker.parallel import Placement
from worker.vision import gemma4
from worker.vision.layers import ChannelScales, LearnedVectors, PatchLinear, TowerAttention

HEAD_NORM_EPS = 1e-6
"""Of norms of queries and keys, in every family that has them."""


class Tower(Layer):
    """Patches of one image -> hidden states behind some of the blocks."""

    def __init__(self, config: TowerConfig, features: Collection[int], place: Placement) -> None:
        """features: behind so many blocks, each. place: of what every rank holds whole."""
        super().__init__()
        self.config, self._features, width = config, features, config.hidden_size
        self.patches = PatchLinear(
            config.patch_size,
            width,
            config.patch_bias,
            place,
            frames=config.frames,
            as_matrix=config.flat_patches or config.channels_last,
        )
        self.patch_norm = self.patch_output_norm = None
        if config.patch_norms:
            sizes = 3 * config.patch_size**2, width
            self.patch_norm, self.patch_output_norm = (
                LayerNorm(each, config.norm_eps, place) for each in sizes
            )
        batch = (1,) if config.stored_as_batch else ()
        self.class_token = self.positions = None
        if config.class_token:
            self.class_token = LearnedVectors((*batch, *batch, width), place)
        if config.learned_positions:
            count = config.patches_per_side**2 + config.class_token
            self.positions = LearnedVectors((*batch, count, width), place)
        elif config.position_rows:
            tables = (config.position_rows, 2) if config.paired_positions else (2, config.position_rows)
            self.positions = LearnedVectors((*tables, width), place)
        self._rows_of_positions: torch.Tensor | None = None
        if config.buckets_positions:
            self._rows_of_positions = bucketed_positions(config.patches_per_side).to(place.device)
        self.first_norm = norm(config, place) if config.first_norm else None
        self.blocks = torch.nn.ModuleList(block(config, place) for _ in range(max(features)))
        self.last_norm = LayerNorm(width, config.norm_eps, place) if config.last_norm else None

    def forward(self, patches: torch.Tensor, grid: tuple[int, int]) -> dict[int, torch.Tensor]:
        """[N, 3 * F * P * P] of an image -> by number of a block, the states behind it, [N, E] each, behind
        or before the class token's, if there is one; 0: the input of the first one. grid: rows and columns of
        patches."""
        x, residual = self._embed(patches, grid), None
        batch, rotation = batch_of(len(x), x.device), self._rotation(*grid, x.device)
        order, lengths = None, torch.empty(0)
        if self.config.window:
            order, lengths = windows(*grid, self.config.window)
            order = order.to(x.device)
            x, rotation = x[order], None if rotation is None else replace(rotation, index=order)
        found = {0: x} if 0 in self._features else {}
        for number, layer in enumerate(self.blocks, start=1):
            assert isinstance(layer, AnyBlock)
            windowed = order is not None and number - 1 not in self.config.full_layers
            x, residual = layer.forward(x, residual, batch, (lengths,) if windowed else (), rotation)
            if number in self._features:
                x, residual = self.ops.scaled_add(x, residual), None
                normed = x if self.last_norm is None else self.last_norm(x)
                found[number] = normed if order is None else normed[order.argsort()]
        return found

    def _embed(self, patches: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """[N, 3 * F * P * P] -> the input of the first block, [N, E]."""
        x = self.patches.product(patches if self.patch_norm is None else self.patch_norm(patches))
        x = x if self.patch_output_norm is None else self.patch_output_norm(x)
        if self.class_token is not None:
            both = (x, self.class_token.vectors)
            x = torch.cat(both if self.config.class_last else both[::-1])
        if self.positions is not None:
            table, rows = self.positions.vectors, self._rows_of_positions
            if self.config.position_rows:
                x = x + summed_positions(table, *grid, paired=self.config.paired_positions)
            elif self.config.interpolates_positions:
                x = x + interpolated_positions(table, *grid).to(x.dtype)
            else:
                x = x + (table if rows is None else table[rows])
        return x if self.first_norm is None else self.first_norm(x)

    def _rotation(self, rows: int, columns: int, device: torch.device) -> Rotation | None:
        theta, size = self.config.rotary_theta, self.config.head_dim
        if theta is None:
            return None
        if self.config.rotates_pairs:
            angles = column_angles(rows, columns, size, theta, device)
            if self.config.class_last:
                angles = torch.cat((angles, angles.new_zeros(1, size // 2)))
        else:
            angles = axial_angles(rows, columns, size, theta, device, equal=self.config.equal_frequencies)
        cos, sin = angles.cos(), angles.sin()
        return Rotation(torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1), None, self.ops)


def norm(config: TowerConfig, place: Placement) -> Norm:
    """Returns a norm of the residual stream."""
    kind = RMSNorm if config.rms_norms else LayerNorm
    return kind(config.hidden_size, config.norm_eps, place)


def block(config: TowerConfig, place: Placement) -> AnyBlock:
    """Returns a block; its parts are made in the order in which it uses them."""
    if config.around_norms:
        return gemma4.block(config, place)
    first, attending = norm(config, place), attention(config, place)
    if not config.channel_scales:
        return Block(first, attending, norm(config, place), mlp(config, place))
    width = config.hidden_size
    return AroundNormBlock(
        *(first, attending, ChannelScales(width, place)),
        *(norm(config, place), mlp(config, place), ChannelScales(width, place)),
    )


def attention(config: TowerConfig, place: Placement) -> TowerAttention:
    """Returns the attention part of a block."""
    width, heads = config.hidden_size, config.num_heads
    size = config.head_dim
    order = (*range(0, size, 2), *range(1, size, 2)) if config.rotates_pairs else ()
    qkv = qkv_linear(width, heads, heads, size, config.qkv_bias, place, head_order=order)
    norms = None
    if config.head_norms:
        norms = RMSNorm(width, HEAD_NORM_EPS, place), RMSNorm(width, HEAD_NORM_EPS, place)
    return TowerAttention(qkv, heads, RowLinear(width, width, config.output_bias, place, units=1), norms)


def mlp(config: TowerConfig, place: Placement) -> FeedForward:
    """Returns the feed-forward part of a block."""
    width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    up = column_linear(width, (inner, inner) if config.gated else (inner,), bias, place)
    kind = GatedMLP if config.gated else MLP
    return kind(up, RowLinear(inner, width, bias, place, units=1), config.activation)


def batch_of(count: int, device: torch.device) -> InputBatch:
    """Returns what layers read of a step, of the patches of one image."""
    numbers = torch.arange(count, device=device)
    return InputBatch(token_ids=numbers, positions=numbers, prompt_lens=numbers, attention={})


def axial_angles(
    rows: int, columns: int, size: int, theta: float, device: torch.device, *, equal: bool = False
) -> torch.Tensor:
    """Returns the angles of patches, [rows * columns, size / 2] float32: a half of them turn with the row,
    by frequencies of even number, the other half with the column, by the same ones or the others. size: of a
    head."""
    frequencies = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
    row, column = (torch.arange(count, dtype=torch.float32, device=device) for count in (rows, columns))
    by_row = (row[:, None] * frequencies[::2])[:, None].expand(-1, columns, -1)
    by_column = (column[:, None] * frequencies[0 if equal else 1 :: 2])[None].expand(rows, -1, -1)
    return torch.cat((by_row, by_column), 2).view(rows * columns, -1)


def column_angles(rows: int, columns: int, size: int, theta: float, device: torch.device) -> torch.Tensor:
    """As axial_angles() with equal frequencies, the first half by the column, and both numbered from 1."""
    angles = axial_angles(rows + 1, columns + 1, size, theta, device, equal=True)
    by_row, by_column = angles.view(rows + 1, columns + 1, -1)[1:, 1:].chunk(2, dim=2)
    return torch.cat((by_column, by_row), 2).view(rows * columns, -1)


def windows(rows: int, columns: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the numbers of patches window by window, [rows * columns] int64, and how many each window has
    [W], for squares of `side` patches from the upper left corner; those at the other edges may be smaller."""
    down, right = torch.arange(rows) // side, torch.arange(columns) // side
    window = (down[:, None] * (-(-columns // side)) + right[None]).flatten()
    return window.argsort(stable=True), window.bincount()


def summed_positions(table: torch.Tensor, rows: int, columns: int, *, paired: bool = False) -> torch.Tensor:
    """Adds the vectors of columns, the first half of a table [2 * n, E], and those of rows, the other half;
    paired: the two of each number stand side by side. Returns [rows * columns, E]."""
    of_columns, of_rows = (table[::2], table[1::2]) if paired else table.chunk(2)
    return (of_columns[None, :columns] + of_rows[:rows, None]).flatten(0, 1)


def interpolated_positions(table: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Stretches a table of positions over a grid, whose corners are those of the table: [side * side, E] ->
    [rows * columns, E] float32, each of four neighbours, as transformers adds them up."""
    side, found = isqrt(len(table)), torch.zeros((), device=table.device)
    above, left = (_neighbours(count, side, table.device) for count in (rows, columns))
    for row, row_weight in above:
        for column, column_weight in left:
            numbers = (row[:, None] * side + column[None]).flatten()
            weights = (row_weight[:, None] * column_weight[None]).flatten()
            found = found + table[numbers] * weights[:, None]
    return found


def _neighbours(count: int, side: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the two rows of a table of `side` rows around each of `count` rows, [count] int64, each with
    its weights [count] float32."""
    places = torch.arange(count, dtype=torch.float32, device=device) * (side - 1) / max(count - 1, 1)
    before = places.floor()
    return [
        ((before.long() + step).clamp(max=side - 1), (1 - (places - before - step).abs()).clamp(min=0))
        for step in (0, 1)
    ]


def bucketed_positions(side: int) -> torch.Tensor:
    """Returns the row of the table of positions for each patch of an image of `side` rows and columns,
    [side * side] int64: as transformers finds it, from fractions of a side in float32."""
    boundaries = torch.arange(1 / side, 1.0, 1 / side)
    fractions = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))
    found = torch.bucketize(fractions.clamp(max=1.0 - 1e-6), boundaries, right=True)
    return (found[:, None] * side + found[None]).flatten()
