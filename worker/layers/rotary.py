"""Rotary position embedding: angles per position, for each way of scaling them.

    angle(p, i) = p * frequency[i]      frequency[i] = theta ** (-2 i / D), 0 <= i < D / 2

    default   as it stands
    linear    all frequencies divided by a factor
    llama3    low frequencies divided, high ones kept, a smooth blend between two wavelengths
    yarn      the same idea with a linear ramp over i; cos and sin are scaled too
    dynamic   theta grows with the context once that is longer than the model was trained for

The context of the dynamic kind is the prompt or, for output tokens, what has been computed: as in
transformers, so that its results are met, yet a function of (prompt, position) alone, so that
neither chunking nor preemption changes them.
"""

import math

import torch

from kernels.cpu.attention.block_attention import BlockPlan
from kernels.cpu.elementwise.row_kernels import RowKernels
from kernels.ops.layers.rotary import rotary
from worker.config.hf_config import RopeConfig
from worker.model_input import InputBatch

TABLE_POSITIONS = 1 << 14
"""Whose angles are kept on a CPU; 8 MiB for heads of 64."""


class Rotation:
    """The angles of one step, for all layers: cos and sin as kernels.ops.layers.rotary wants them."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor, index: torch.Tensor | None = None) -> None:
        """cos, sin: [P, D] float32. index: [T] int64, the row of each token; None: its own number."""
        self.cos, self.sin, self.index = cos, sin, index

    def __call__(self, x: torch.Tensor, kernels: RowKernels | None = None) -> torch.Tensor:
        """[T, N, D] -> [T, N, D]; with kernels, which change x itself."""
        if kernels is not None:
            return kernels.rotate(x, self.cos, self.sin, self.index)
        if self.index is None:
            return rotary(x, self.cos, self.sin)
        return rotary(x, self.cos[self.index], self.sin[self.index])


class Rotary:
    """The frequencies of a model."""

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._config, self._head_dim = config, head_dim
        self._exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        self._frequencies = _scaled_frequencies(config, config.theta**-self._exponents, head_dim)  # [D / 2]
        self._table = self._turn(torch.empty(0, 0, device=device))

    def rotation(self, batch: InputBatch) -> Rotation:
        """The angles of this step."""
        positions = batch.positions
        if self._config.kind == "dynamic":
            return self._turn(
                positions[:, None].float() * self._dynamic_frequencies(positions, batch.prompt_lens)
            )
        plan = next(iter(batch.attention.values()))
        if isinstance(plan, BlockPlan) and plan.context <= TABLE_POSITIONS:
            table = self._table_of(plan.context)
            return Rotation(table.cos, table.sin, positions)
        return self._turn(positions[:, None].float() * self._frequencies)

    def _turn(self, angles: torch.Tensor) -> Rotation:
        """angles: [T, D / 2] float32."""
        scale = self._config.attention_factor
        cos, sin = angles.cos() * scale, angles.sin() * scale
        return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))

    def _table_of(self, positions: int) -> Rotation:
        """Of the first positions, at least so many. Computing the angles of one token anew takes 80 us in
        torch, all of it calls."""
        if self._table.cos.shape[0] < positions:
            size = 1 << (positions - 1).bit_length()
            every = torch.arange(size, dtype=torch.float32, device=self._frequencies.device)
            self._table = self._turn(every[:, None] * self._frequencies)
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
    """The index i at which a frequency makes that many turns within the original context."""
    wavelength = config.original_max_position / (turns * 2 * math.pi)
    return head_dim * math.log(wavelength) / (2 * math.log(config.theta))
