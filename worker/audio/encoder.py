"""The encoder of sounds: one clip -> vectors that stand in place of tokens of a decoder.

    float32 [frames, bins]      the clip's log-mel spectrogram, as the frontend has made it (MediaItem)
    convolutions                a state for two frames
    blocks                      Whisper's encoder, in which the states see one another
    projector                   neighbouring states -> vectors [n, E] of the decoder

A clip is computed alone, by operations whose result for a row depends on that row alone and attention over
this clip alone: vectors are a function of weights and clip. Nothing is computed of the silence that
transformers puts behind a clip, which none of its states sees.
"""

import torch

from pagewire.internal.v1 import worker_pb2
from worker.audio.layers import TAPS, Convolution, QueryKeyValue
from worker.config.audio import AudioConfig
from worker.layers.base import Layer
from worker.layers.block import AnyBlock, Block
from worker.layers.linear import RowLinear, column_linear
from worker.layers.mlp import MLP
from worker.layers.norm import LayerNorm
from worker.parallel import Placement
from worker.vision.layers import LearnedVectors, TowerAttention
from worker.vision.tower import batch_of

_BEHIND_CONVOLUTIONS = "gelu"
"""Whatever the activation of blocks is."""


class AudioEncoder(Layer):
    """Convolutions, blocks and projector."""

    def __init__(self, config: AudioConfig, width: int, place: Placement) -> None:
        """width: of the decoder. place: of what every rank holds whole."""
        super().__init__()
        self.config, self._width, self._dtype, own = config, width, place.dtype, config.hidden_size
        self.first = Convolution(config.num_bins, own, 1, place)
        self.second = Convolution(own, own, 2, place)
        self.positions = LearnedVectors((config.max_states, own), place)
        self.blocks = torch.nn.ModuleList(_block(config, place) for _ in range(config.num_layers))
        self.last_norm = LayerNorm(own, config.norm_eps, place)
        inputs = own if config.averages else own * config.group
        self.up = column_linear(inputs, (width,), config.projector_bias, place)
        self.down = None
        if config.projector_activation is not None:
            self.down = column_linear(width, (width,), config.projector_bias, place)

    @property
    def tower(self) -> torch.nn.Module:
        """What computes each state of a clip, except for the convolutions."""
        return self.blocks

    def activation_bytes(self, initialize: worker_pb2.Initialize) -> int:
        """About what the longest clip takes while it is encoded: a few tensors of the encoder's widths, the
        queries, keys and values widened, and the inputs of the convolutions."""
        config = self.config
        of_state = 6 * config.hidden_size + 2 * config.intermediate_size
        of_frame = 2 * TAPS * max(config.num_bins, config.hidden_size)
        size = (of_state + 2 * of_frame) * self._dtype.itemsize + 16 * config.hidden_size
        return config.max_states * size

    def kept_bytes(self, initialize: worker_pb2.Initialize) -> int:
        """Of the vectors that a core has its worker keep, at most."""
        largest = max(initialize.max_num_batched_tokens, self.config.max_vectors)
        return (initialize.encoder_cache_tokens or largest) * self._width * self._dtype.itemsize

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """[frames, bins] float32 -> [n, E]; n is 0 for a size that the encoder does not take."""
        config = self.config
        if not config.num_vectors(*features.shape):
            return torch.empty(0, self._width, dtype=self._dtype, device=features.device)
        states = len(features) // 2
        x = self.first(features.to(self._dtype))[: 2 * states]
        x = self.second(self.ops.activation(x, _BEHIND_CONVOLUTIONS))
        x = self.ops.activation(x, _BEHIND_CONVOLUTIONS) + self.positions.vectors[:states]
        batch, residual = batch_of(states, x.device), None
        for block in self.blocks:
            assert isinstance(block, AnyBlock)
            x, residual = block.forward(x, residual, batch, ())
        x = self.ops.scaled_add(x, residual)
        return self._project(x[: states - states % config.group])

    def _project(self, x: torch.Tensor) -> torch.Tensor:
        """[N, E of the encoder] -> [N / group, E]."""
        if self.config.averages:
            x = self.last_norm(averages(x, self.config.group))
        else:
            x = self.last_norm(x).view(len(x) // self.config.group, -1)
        batch = batch_of(len(x), x.device)
        x = self.up(x, batch)
        if self.down is None or self.config.projector_activation is None:
            return x
        return self.down(self.ops.activation(x, self.config.projector_activation), batch)


def averages(x: torch.Tensor, group: int) -> torch.Tensor:
    """[N, E] -> [N / group, E]: the mean of neighbours, added in float32, one after another."""
    cut = x.view(-1, group, x.shape[1])
    total = cut[:, 0].float()
    for number in range(1, group):
        total = total + cut[:, number].float()
    return (total / group).to(x.dtype)


def _block(config: AudioConfig, place: Placement) -> Block:
    width, inner = config.hidden_size, config.intermediate_size
    output = RowLinear(width, width, True, place, units=1)
    attention = TowerAttention(QueryKeyValue(width, place), config.num_heads, output)
    up, down = column_linear(width, (inner,), True, place), RowLinear(inner, width, True, place, units=1)
    return Block(
        LayerNorm(width, config.norm_eps, place),
        attention,
        LayerNorm(width, config.norm_eps, place),
        MLP(up, down, config.activation),
    )
