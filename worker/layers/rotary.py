"""Rotary position embedding: angles per position, for each way of scaling them.

    angle(p, i) = p * frequency[i]      frequency[i] = theta ** (-2 i / D), 0 <= i < D / 2

    default   as it stands
    linear    all frequencies divided by a factor
    llama3    low frequencies divided, high ones kept, a smooth blend between two wavelengths
    yarn      the same idea with a linear ramp over i; cos and sin are scaled too
    divided   each frequency divided by a number of its own, as GGUF files give them
    dynamic   theta grows with the context once that is longer than the model was trained for

The context of the dynamic kind is the prompt or, for output tokens, what has been computed: as in
transformers, and a function of (prompt, position) alone, so that
neither chunking nor preemption changes the results.
"""

import math

import torch

from kernels.cpu.elementwise.row_kernels import RowKernels
from worker.attention.plan import Rotation
from worker.config.hf_config import RopeConfig
from worker.layers.base import Layer
from worker.model_input import InputBatch

TABLE_POSITIONS = 1 << 14
"""Positions whose angles are kept in a table on a CPU: 8 MiB for heads of 64."""


class Rotary(Layer):
    """The frequencies of a model. A layer without parameters: its kernels rotate."""

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        super().__init__()
        self.kernels: RowKernels | None = None
        self._config, self._head_dim = config, head_dim
        self._exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        self._frequencies = _scaled_frequencies(config, config.theta**-self._exponents, head_dim)  # [D / 2]
        self._table = self._rotation_by(torch.empty(0, 0, device=device))

    def use_kernels(self, kernels: RowKernels) -> None:
        """Rotates with the compiled kernels."""
        self.kernels = kernels

    @property
    def can_lower(self) -> bool:
        """See Layer: programs rotate where they attend (worker.layers.attention)."""
        return self.kernels is not None

    def rotation(self, batch: InputBatch) -> Rotation:
        """Returns the angles of this step."""
        positions = batch.positions
        if self._config.kind == "dynamic":
            return self._rotation_by(
                positions[:, None].float() * self._dynamic_frequencies(positions, batch.prompt_lens)
            )
        if batch.max_context is not None and batch.max_context <= TABLE_POSITIONS:
            table = self._table_of(batch.max_context)
            return Rotation(table.cos, table.sin, positions, self.kernels)
        return self._rotation_by(positions[:, None].float() * self._frequencies)

    def _rotation_by(self, angles: torch.Tensor) -> Rotation:
        """angles: [T, D / 2] float32."""
        scale = self._config.attention_factor
        cos, sin = angles.cos() * scale, angles.sin() * scale
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return Rotation(cos, sin, None, self.kernels)

    def _table_of(self, positions: int) -> Rotation:
        """Returns the angles of the first positions, at least so many. Without a table, the angles of one
        token take 80 us in torch, all of it calls."""
        if self._table.cos.shape[0] < positions:
            size = 1 << (positions - 1).bit_length()
            every = torch.arange(size, dtype=torch.float32, device=self._frequencies.device)
            self._table = self._rotation_by(every[:, None] * self._frequencies)
        return self._table

    def _dynamic_frequencies(self, positions: torch.Tensor, prompt_lens: torch.Tensor) -> torch.Tensor:
        """[T] and [T] -> [T, D / 2]."""
        config, dim = self._config, self._head_dim
        context = torch.maximum(positions + 1, prompt_lens).clamp(min=config.original_max_position)
        growth = config.factor * context / config.original_max_position - (config.factor - 1)
        theta = config.theta * growth ** (dim / (dim - 2))
        return theta[:, None] ** -self._exponents


def _scaled_frequencies(config: RopeConfig, frequencies: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[D / 2] -> [D / 2]."""
    if config.kind == "linear":
        return frequencies / config.factor
    if config.kind == "divided":
        return frequencies / torch.tensor(config.divisors, device=frequencies.device)
    if config.kind == "llama3":
        turns = config.original_max_position * frequencies / (2 * math.pi)  # within the original context
        kept = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
        return _blend(frequencies, config.factor, kept.clamp(0, 1))
    if config.kind == "yarn":
        low, high = (_yarn_bound(config, turns, head_dim) for turns in (config.beta_fast, config.beta_slow))
        if config.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        indexes = torch.arange(head_dim // 2, dtype=torch.float32, device=frequencies.device)
        kept = 1 - ((indexes - low) / ((high - low) or 0.001)).clamp(0, 1)
        return _blend(frequencies, config.factor, kept)
    return frequencies


def _blend(frequencies: torch.Tensor, factor: float, kept: torch.Tensor) -> torch.Tensor:
    """kept: [D / 2] in 0 .. 1; 1: as it stands, 0: divided by the factor."""
    return frequencies / factor * (1 - kept) + frequencies * kept


def _yarn_bound(config: RopeConfig, turns: float, head_dim: int) -> float:
    """Returns the index i at which a frequency makes that many turns within the original context."""
    wavelength = config.original_max_position / (turns * 2 * math.pi)
    return head_dim * math.log(wavelength) / (2 * math.log(config.theta))
