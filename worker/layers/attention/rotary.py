"""Rotary position embedding: angles per position, for each way of scaling them.

    angle(p, i) = p * frequency[i]      frequency[i] = theta ** (-2 i / R), 0 <= i < R / 2

    default   as it stands
    linear    all frequencies divided by a factor
    llama3    low frequencies divided, high ones kept, a smooth blend between two wavelengths
    yarn      the same idea with a linear ramp over i; cos and sin are scaled too
    divided   each frequency divided by a number of its own, as GGUF files give them
    proportional  all divided by a factor, and those of the highest numbers are 0
    dynamic   theta grows with the context once that is longer than the model was trained for
    longrope  each frequency has a divisor of its own, and another one for contexts longer than that

R values of a head are rotated, all D of them in most families. The kernels rotate pairs (i, i + D / 2) of
all D. Other pairs and partial rotation are the same with the rows of query and key projections in another
order (rotary_order), and with angles of 0 for what is not rotated: scores do not change when the values of
queries and keys are permuted alike.

Images of some models have positions of three axes, time, row and column, and each frequency turns with one of
them (M-RoPE, worker.step.grid_positions). Tokens of text have one position on all three.

The context of the dynamic kind and of longrope is the prompt or, for output tokens, what has been computed:
as in transformers, and a function of (prompt, position) alone, so that neither chunking nor preemption
changes the results.

Temperature tuning: in layers without rotary positions queries may grow with their position,

    q'[p] = q[p] * (1 + scale * log(1 + floor((p + 1) / floor_scale)))

(Llama 4, after https://arxiv.org/abs/2501.19399). Factors are numbers of a table, one per level
floor((p + 1) / floor_scale), so that a position has the same factor in every step.
"""

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F

from kernels.api import InputBatch, Rotation
from worker.config.decoder import TemperatureConfig
from worker.config.rope import RopeConfig
from worker.layers.base import Layer

TABLE_POSITIONS = 1 << 14
"""Positions whose angles are kept in a table on a CPU: 8 MiB for heads of 64."""


def rotary_order(rope: RopeConfig | None, head_dim: int) -> tuple[int, ...]:
    """Returns the values of a head in the order in which the kernels rotate them; empty: as they stand."""
    if rope is None or (rope.rotary_dim == head_dim and not rope.interleaved):
        return ()
    half, rotated = head_dim // 2, rope.rotary_dim
    kept = range(rotated, head_dim)
    others = half - rotated // 2
    if rope.interleaved:
        first, second = range(0, rotated, 2), range(1, rotated, 2)
    else:
        first, second = range(rotated // 2), range(rotated // 2, rotated)
    return (*first, *kept[:others], *second, *kept[others:])


class Angles(Layer, ABC):
    """What positions make of queries and keys. Its kernels work where layers attend."""

    queries_only = False
    """True if keys stay as they are."""

    def rotation(self, batch: InputBatch) -> Rotation:
        """Returns what this step's tokens are rotated by."""
        return self.ops.rotation(self.angles, batch, self.queries_only)

    @abstractmethod
    def angles(self, batch: InputBatch) -> Rotation:
        """Computes it. Where steps are programs, that is done before each of them."""


class Rotary(Angles):
    """The frequencies of a model. A layer without parameters: its kernels rotate."""

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        super().__init__()
        self._config, self._head_dim = config, head_dim
        rotated = config.rotary_dim
        self._exponents = torch.arange(0, rotated, 2, dtype=torch.float32, device=device) / rotated
        self._frequencies = _scaled_frequencies(config, config.theta**-self._exponents)  # [R / 2]
        self._axes = torch.tensor(config.axes, dtype=torch.int64, device=device)  # [R / 2]; empty: one axis
        self._table = self._rotation_by(torch.empty(0, 0, device=device))

    def angles(self, batch: InputBatch) -> Rotation:
        """Returns the angles of this step."""
        positions = batch.positions
        if self._config.depends_on_prompt_len:
            context = torch.maximum(positions + 1, batch.prompt_lens)
            frequencies = (
                self._dynamic_frequencies if self._config.kind == "dynamic" else self._long_frequencies
            )
            return self._rotation_by(positions[:, None].float() * frequencies(context))
        if batch.grid_positions is not None and len(self._axes):
            positions = batch.grid_positions.index_select(0, self._axes).t().contiguous()  # [T, R / 2]
            return self._rotation_by(positions.float() * self._frequencies)
        if batch.max_context is not None and batch.max_context <= TABLE_POSITIONS:
            table = self._table_of(batch.max_context)
            return Rotation(table.cos, table.sin, positions, self.ops)
        return self._rotation_by(positions[:, None].float() * self._frequencies)

    def _rotation_by(self, angles: torch.Tensor) -> Rotation:
        """angles: [T, R / 2] float32."""
        scale = self._config.attention_factor
        others = (0, self._head_dim // 2 - angles.shape[1])  # the rest of a head's half stays as it is
        cos, sin = F.pad(angles.cos() * scale, others, value=1.0), F.pad(angles.sin() * scale, others)
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return Rotation(cos, sin, None, self.ops)

    def _table_of(self, positions: int) -> Rotation:
        """Returns the angles of the first positions, at least so many. Without a table, the angles of one
        token take 80 us in torch, all of it calls."""
        if self._table.cos.shape[0] < positions:
            size = 1 << (positions - 1).bit_length()
            every = torch.arange(size, dtype=torch.float32, device=self._frequencies.device)
            self._table = self._rotation_by(every[:, None] * self._frequencies)
        return self._table

    def _dynamic_frequencies(self, context: torch.Tensor) -> torch.Tensor:
        """context: [T] tokens -> [T, R / 2]."""
        config, dim = self._config, self._config.rotary_dim
        context = context.clamp(min=config.original_max_position)
        growth = config.factor * context / config.original_max_position - (config.factor - 1)
        theta = config.theta * growth ** (dim / (dim - 2))
        return theta[:, None] ** -self._exponents

    def _long_frequencies(self, context: torch.Tensor) -> torch.Tensor:
        """context: [T] tokens -> [T, R / 2]."""
        config = self._config
        short, long = (
            self._frequencies / torch.tensor(divisors, device=self._frequencies.device)
            for divisors in (config.short_factors, config.long_factors)
        )
        return torch.where((context > config.original_max_position)[:, None], long, short)


def _scaled_frequencies(config: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """[R / 2] -> [R / 2]."""
    if config.kind == "linear":
        return frequencies / config.factor
    if config.kind == "proportional":
        return (
            F.pad(frequencies[: config.num_turning], (0, len(frequencies) - config.num_turning))
            / config.factor
        )
    if config.kind == "divided":
        return frequencies / torch.tensor(config.divisors, device=frequencies.device)
    if config.kind == "llama3":
        turns = config.original_max_position * frequencies / (2 * math.pi)  # within the original context
        between = config.high_freq_factor - config.low_freq_factor  # 0: a frequency is kept, or divided
        kept = (turns - config.low_freq_factor) / (between or 1e-9)
        return _blend(frequencies, config.factor, kept.clamp(0, 1))
    if config.kind == "yarn":
        low, high = (_yarn_bound(config, turns) for turns in (config.beta_fast, config.beta_slow))
        if config.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, config.rotary_dim - 1)
        indexes = torch.arange(config.rotary_dim // 2, dtype=torch.float32, device=frequencies.device)
        kept = 1 - ((indexes - low) / ((high - low) or 0.001)).clamp(0, 1)
        return _blend(frequencies, config.factor, kept)
    return frequencies


def _blend(frequencies: torch.Tensor, factor: float, kept: torch.Tensor) -> torch.Tensor:
    """kept: [R / 2] in 0 .. 1; 1: as it stands, 0: divided by the factor."""
    return frequencies / factor * (1 - kept) + frequencies * kept


def _yarn_bound(config: RopeConfig, turns: float) -> float:
    """Returns the index i at which a frequency makes that many turns within the original context."""
    wavelength = config.original_max_position / (turns * 2 * math.pi)
    return config.rotary_dim * math.log(wavelength) / (2 * math.log(config.theta))


class QueryTemperature(Angles):
    """The factors of a model. A layer without parameters: a rotation by 0 whose cosines are the factors."""

    queries_only = True

    def __init__(
        self, config: TemperatureConfig, max_position: int, head_dim: int, device: torch.device
    ) -> None:
        super().__init__()
        self._floor_scale, self._head_dim = config.floor_scale, head_dim
        levels = np.arange(max_position // config.floor_scale + 1, dtype=np.float64)
        factors = (1 + config.scale * np.log1p(levels)).astype(np.float32)
        self._factors = torch.from_numpy(factors).to(device)

    def angles(self, batch: InputBatch) -> Rotation:
        """Returns the factors of this step as cosines."""
        level = (batch.positions + 1) // self._floor_scale
        cos = self._factors[level][:, None].expand(-1, self._head_dim).contiguous()
        return Rotation(cos, torch.zeros_like(cos), None, self.ops, self.queries_only)
