"""The duration of a step on a machine that is limited by memory bandwidth or by arithmetic.

    step      = linear + attention + overhead
    linear    = max(W / bandwidth, F_linear / peak)
    attention = max(C / bandwidth, F_attention / peak)
    overhead  = layers * layer_overhead

The two parts add up because they are different kernels, one after the other; each is limited by the scarcer
resource. For a step of R rows that compute T tokens, A of which are sampled:

    W            bytes of the matrices: b * (layers * P + (P_head if A > 0)), read once whatever T is
    F_linear     2 * T * layers * P + 2 * A * P_head               FLOP
    C            bytes of keys and values that the rows attend to: 2 * b * K * D per token and layer, or those
                 of a latent, b * (R + P)
    F_attention  4 * H * D per layer, for each token and position that it attends to, or 2 * H * (2 * R + P)

b is the size of a weight and of a KV value in bytes, P and P_head the weights of one layer's matrices and of
the output head. A row that computes the positions s to e - 1 attends to e tokens; with a window of w tokens
to min(e, e - s + w - 1). The token at position p attends to p + 1 positions, with a window to min(p + 1, w).
With chunks of w tokens it attends to p mod w + 1, and the row to e - s + s mod w tokens.
Norms, activations, embedding rows and writes are left out: they are small in comparison. `peak` is that of
2-byte numbers; it is half for 4-byte numbers.

A step that encodes N vectors of images takes longer by 2 * N * M / peak, with the M weights of the encoder's
matrices that the patches of one vector are multiplied by.
"""

from collections import Counter

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire_simulated.profiles import Profile
from pagewire_simulated.weights import WeightCounts
from worker.config.audio import AudioConfig
from worker.config.hf_config import ModelConfig
from worker.config.vision import VisionConfig


class Roofline:
    """The formula for one model on one machine."""

    def __init__(
        self, config: ModelConfig, weights: WeightCounts, value_bytes: int, profile: Profile
    ) -> None:
        """value_bytes: of a weight, and of a value in the KV cache."""
        self._layers_weights = config.num_layers * weights.layer
        self._head_weights = weights.head
        self._value_bytes = value_bytes
        self._bandwidth = profile.bandwidth
        self._peak = profile.peak * 2 / value_bytes
        self._overhead = config.num_layers * profile.layer_overhead
        self._windows = Counter(config.windows)  # window -> layers that have it
        self._chunked = config.chunked
        self._kv_token_bytes = value_bytes * config.kv_values
        self._pair_flops = 2 * config.num_heads * config.pair_values
        self._vector_flops = 0 if config.vision is None else 2 * encoder_weights(config.vision)

    def encoding_seconds(self, num_vectors: int) -> float:
        """Returns what a step takes longer that encodes so many vectors of images."""
        return num_vectors * self._vector_flops / self._peak

    def seconds(self, starts: Integers, counts: Integers, num_sampled: int) -> float:
        """Returns the duration of a step. starts, counts: [R] first position and number of positions of each
        row."""
        num_tokens = int(counts.sum())
        return self._linear(num_tokens, num_sampled) + self._attention(starts, counts) + self._overhead

    def prefill_us_per_token(self, num_tokens: int) -> float:
        """Returns microseconds per token of a prompt of num_tokens that is computed in one step."""
        return 1e6 * self.seconds(np.array([0]), np.array([num_tokens]), 1) / num_tokens

    def _linear(self, num_tokens: int, num_sampled: int) -> float:
        weights = self._layers_weights + (self._head_weights if num_sampled else 0)
        flops = 2 * num_tokens * self._layers_weights + 2 * num_sampled * self._head_weights
        return max(weights * self._value_bytes / self._bandwidth, flops / self._peak)

    def _attention(self, starts: Integers, counts: Integers) -> float:
        tokens = pairs = 0
        for window, layers in self._windows.items():
            read, attended = _kv_use(starts, counts, window, self._chunked)
            tokens += layers * read
            pairs += layers * attended
        return max(tokens * self._kv_token_bytes / self._bandwidth, pairs * self._pair_flops / self._peak)


def encoder_weights(vision: VisionConfig | AudioConfig) -> int:
    """Returns the weights of matrices by which the patches, or states, of one vector are multiplied."""
    if isinstance(vision, AudioConfig):
        block = 4 * vision.hidden_size**2 + 2 * vision.hidden_size * vision.intermediate_size
        return vision.group * vision.num_layers * block
    tower = vision.tower
    products = 3 if tower.gated else 2
    block = 4 * tower.hidden_size**2 + products * tower.hidden_size * tower.intermediate_size
    return vision.projector.merge**2 * vision.num_layers * block


def _kv_use(starts: Integers, counts: Integers, window: int | None, chunked: bool) -> tuple[int, int]:
    """Returns the KV tokens that one layer reads, and the pairs of a token and a position it attends to."""
    ends = starts + counts
    if window is None:
        return int(ends.sum()), int((counts * (starts + 1 + ends) // 2).sum())
    if chunked:
        pairs = _pairs_before(ends, window) - _pairs_before(starts, window)
        return int((counts + starts % window).sum()), int(pairs.sum())
    growing = np.clip(window - starts, 0, counts)  # tokens that attend to all positions before them
    pairs = growing * (2 * starts + growing + 1) // 2 + (counts - growing) * window
    return int(np.minimum(ends, counts + window - 1).sum()), int(pairs.sum())


def _pairs_before(positions: Integers, chunk: int) -> Integers:
    """Returns the pairs of all tokens before each position, in chunks."""
    whole, rest = positions // chunk, positions % chunk
    return np.asarray(whole * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2)
