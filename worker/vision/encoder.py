"""The encoder of images: one image -> vectors that stand in place of tokens of a decoder.

    uint8 [height, width, 3]    as the frontend has resized and cut it (MediaItem)
    pixels                      float32, with transformers' bits
    tower                       a transformer over patches
    projector                   squares of patches -> vectors [n, E] of the decoder

An image is computed alone, by operations whose result for a row depends on that row alone and attention over
this image alone: vectors are a function of weights and image.
"""

from dataclasses import replace

import torch

from pagewire.internal.v1 import worker_pb2
from worker.config.vision import ProjectorConfig, VisionConfig
from worker.layers.base import Layer
from worker.layers.linear import ColumnLinear, column_linear
from worker.layers.norm import LayerNorm, RMSNorm, UnitNorm
from worker.parallel import Placement
from worker.vision.layers import LearnedVectors, ParameterLinear
from worker.vision.pixels import normalized, patches, pixel_table
from worker.vision.tower import Tower, batch_of


class Projector(Layer):
    """Hidden states of patches -> vectors of a decoder; see ProjectorConfig."""

    def __init__(
        self, config: ProjectorConfig, tower_width: int, num_features: int, width: int, place: Placement
    ) -> None:
        """width: of the decoder. num_features: of a tower, side by side."""
        super().__init__()
        self.config, inputs = config, tower_width * num_features

        norm = LayerNorm if config.tower_layer_norm else RMSNorm

        def linear(inputs: int, outputs: int, bias: bool) -> ColumnLinear:
            return column_linear(inputs, (outputs,), bias, place)

        self.norm = self.merging = self.layer_norm = self.down = self.last = None
        if config.tower_norm_eps is not None:
            self.norm = norm(inputs, config.tower_norm_eps, place)
        averages = config.average_eps is not None
        merged = inputs if averages else inputs * config.merge**2
        self.average_norm = None
        if config.average_eps is not None:
            self.average_norm = RMSNorm(inputs, config.average_eps, place, offset=1.0)
        if config.merging_linear:
            self.merging, merged = linear(merged, inputs, False), inputs
        if config.layer_norm_eps is not None:
            self.layer_norm = LayerNorm(merged, config.layer_norm_eps, place)
        inner = merged if config.inner_square else config.inner_size or width
        self.up = ParameterLinear(merged, width, place) if averages else linear(merged, inner, config.bias)
        if config.activation is not None:
            self.down = linear(inner, config.inner_size or width, config.bias)
        if config.inner_size:
            self.last = linear(inner, width, config.bias)

    def forward(self, x: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """[N, E of the tower] -> [n, E]. grid: rows and columns of patches, where squares are made."""
        x = x if self.norm is None else self.norm(x)
        if self.average_norm is not None:
            x = self.average_norm(averages(x, grid, self.config.merge))
        elif self.config.merge > 1:
            x = squares(x, grid, self.config.merge, self.config.merged_by_channel)
        batch = batch_of(len(x), x.device)
        if self.merging is not None:
            x = self.merging(x, batch)
        x = self.up(x if self.layer_norm is None else self.layer_norm(x), batch)
        if self.down is None or self.config.activation is None:
            return x
        x = self.down(self.ops.activation(x, self.config.activation), batch)
        if self.last is None:
            return x
        return self.last(self.ops.activation(x, self.config.activation), batch)


class PoolingProjector(Layer):
    """Hidden states of patches -> vectors of a decoder, by averages of squares; see ProjectorConfig.

    What is as large as the factor is float32, as with transformers.
    """

    def __init__(self, config: ProjectorConfig, tower_width: int, width: int, place: Placement) -> None:
        """width: of the decoder."""
        super().__init__()
        assert config.pooled_eps is not None
        self._side, self._factor, self._dtype = config.merge, config.pooled_factor, place.dtype
        self.bias = self.scale = None
        if config.standardized:
            self.bias, self.scale = (LearnedVectors((tower_width,), place) for _ in range(2))
        self.norm = UnitNorm(tower_width, config.pooled_eps, place)
        self.up = column_linear(tower_width, (width,), False, place)

    def forward(self, x: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """[N, E of the tower] -> [n, E]. grid: rows and columns of patches."""
        x = averages(x, grid, self._side).float() * self._factor
        if self.bias is not None and self.scale is not None:
            x = (x - self.bias.vectors.float()) * self.scale.vectors.float()
        return self.up(self.norm(x.to(self._dtype)), batch_of(len(x), x.device))


class ImageEncoder(Layer):
    """Pixels, tower and projector."""

    def __init__(self, config: VisionConfig, width: int, place: Placement) -> None:
        """width: of the decoder. place: of what every rank holds whole."""
        super().__init__()
        self.config, self._width, self._dtype = config, width, place.dtype
        self._table = pixel_table(config.pixels).to(place.device)
        self.tower = Tower(config.tower, {*config.features, *config.deeper}, place)
        tower_width, num_features = config.tower.hidden_size, len(config.features)
        if config.projector.pooled_eps is not None:
            self.projector: Layer = PoolingProjector(config.projector, tower_width, width, place)
        else:
            self.projector = Projector(config.projector, tower_width, num_features, width, place)
        of_square = replace(
            config.projector, tower_norm_eps=None, layer_norm_eps=config.projector.tower_norm_eps
        )
        self.deeper = torch.nn.ModuleList(
            Projector(of_square, tower_width, 1, width, place) for _ in config.deeper
        )

    def activation_bytes(self, initialize: worker_pb2.Initialize) -> int:
        """About what the largest image takes while it is encoded: a few tensors of the tower's widths, the
        queries, keys and values widened, and the pixels. A core accepts none with more vectors than it has
        kept."""
        tower, most = self.config.tower, self.config.tower.max_patches
        if initialize.encoder_cache_tokens and tower.any_size:
            most = min(most, initialize.encoder_cache_tokens * self.config.projector.merge**2)
        widths = 6 * tower.hidden_size + (1 + tower.gated) * 2 * tower.intermediate_size
        of_patch = widths * self._dtype.itemsize + 16 * tower.hidden_size + 3 * tower.patch_size**2 * 16
        return (most + tower.class_token) * of_patch

    def kept_bytes(self, initialize: worker_pb2.Initialize) -> int:
        """Of the vectors that a core has its worker keep, at most."""
        largest = max(initialize.max_num_batched_tokens, self.config.max_vectors)
        count = (initialize.encoder_cache_tokens or largest) * self.config.vectors_per_position
        return count * self._width * self._dtype.itemsize

    def largest_image(self) -> torch.Tensor:
        """Returns an image of the largest size that was trained with, [height, width, 3] uint8, black."""
        return torch.zeros(*self.config.largest_size, 3, dtype=torch.uint8, device=self._table.device)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """[height, width, 3], or [frames, height, width, 3], uint8 -> [n, D * E], the D vectors of each
        position side by side; n is 0 for a shape that the encoder does not take."""
        *given, height, width, _ = pixels.shape
        if not self.config.num_vectors(height, width) or given not in ([], [self.config.tower.frames]):
            width = self.config.vectors_per_position * self._width
            return torch.empty(0, width, dtype=self._dtype, device=pixels.device)
        size, frames = self.config.tower.patch_size, max(1, self.config.tower.frames)
        grid = height // size, width // size
        values = normalized(pixels, self._table).to(self._dtype)
        cut = patches(values, size, frames, channels_last=self.config.tower.channels_last)
        states = self.tower(cut, grid)
        features = [states[number] for number in self.config.features]
        x = features[0] if len(features) == 1 else torch.cat(features, 1)
        x = x[1:] if self.config.drops_first else x
        found = [self.projector(x[:-1] if self.config.drops_last else x, grid)]
        for number, projector in zip(self.config.deeper, self.deeper, strict=True):
            found.append(projector(states[number], grid))
        return found[0] if len(found) == 1 else torch.cat(found, 1)


def squares(x: torch.Tensor, grid: tuple[int, int], side: int, by_channel: bool) -> torch.Tensor:
    """[rows * columns, E] -> [rows * columns / side ** 2, side ** 2 * E]: each square of patches, row after
    row. by_channel: the values of a channel stand side by side; else those of a patch."""
    rows, columns = grid
    cut = x.view(rows // side, side, columns // side, side, -1)
    order = (0, 2, 4, 1, 3) if by_channel else (0, 2, 1, 3, 4)
    return cut.permute(order).reshape(len(x) // side**2, -1)


def averages(x: torch.Tensor, grid: tuple[int, int], side: int) -> torch.Tensor:
    """[rows * columns, E] -> [rows * columns / side ** 2, E]: the mean of each square of patches, added in
    float32, one patch after another."""
    rows, columns = grid
    cut = x.view(rows // side, side, columns // side, side, -1)
    total = cut[:, 0, :, 0].float()
    for patch in range(1, side**2):
        total = total + cut[:, patch // side, :, patch % side].float()
    return (total / side**2).to(x.dtype).flatten(0, 1)
