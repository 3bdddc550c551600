"""Activations, plain and gated, rounded once, 16 values per step.

    relu(x)       = max(x, 0)
    silu(x)       = x * sigmoid(x)
    quick_gelu(x) = x * sigmoid(1.702 x)
    gelu(x)       = x * Phi(x), Phi(-a) = (c1 t + ... + c5 t ** 5) * e ** -z ** 2 / 2,   z = a / sqrt(2)
    gelu_new(x)   = x * (1 + tanh(z)) / 2 = x * sigmoid(2 z),   z = sqrt(2 / pi) * (x + 0.044715 * x ** 3)

Phi of -a for a >= 0 is that of Abramowitz and Stegun, 7.1.26, to 7.5e-8, t = 1 / (1 + 0.3275911 z). silu and
the last two are x * sigmoid(linear * x + cubic * x ** 3). In bfloat16 a sigmoid is exact to 1.7e-4 of it
before the result is rounded, which may cost 3.9e-3: e ** -x to 1.0e-4 (kernels.cpu.isa.exp), a reciprocal to
2 ** -14. In float32 it is exact to some roundings. Where e ** -x is infinite, some way below x = -88, the
result is 0.
"""

import math

from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import Element, by_dtype
from kernels.cpu.elementwise.records import (
    ActivationRecord,
    ClampedSwigluRecord,
    GatedActivationRecord,
)
from kernels.cpu.isa.exp import precise_exp
from kernels.cpu.isa.simd import fma, select

_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR
_HALF_ROOT = math.sqrt(0.5)


def _relu(x: f32x16) -> f32x16:
    """Returns NaN for NaN."""
    return select(x < f32x16(0.0), f32x16(0.0), x)


def _gelu(x: f32x16) -> f32x16:
    """Returns x * Phi(x)."""
    one, is_negative = f32x16(1.0), x < f32x16(0.0)
    z = select(is_negative, x * -_HALF_ROOT, x * _HALF_ROOT)
    t = one / fma(z, f32x16(0.3275911), one)
    series = fma(t, f32x16(1.061405429), f32x16(-1.453152027))
    series = fma(t, series, f32x16(1.421413741))
    series = fma(t, series, f32x16(-0.284496736))
    series = fma(t, series, f32x16(0.254829592)) * t
    tail = series * precise_exp(z * z * -1.0) * 0.5
    return x * select(is_negative, tail, one - tail)


def _activated(element: Static[Element], linear: float, cubic: float, x: f32x16) -> f32x16:
    """Returns x * sigmoid(linear * x + cubic * x ** 3)."""
    slope = fma(x * x, f32x16(cubic), f32x16(linear))
    return element.times_sigmoid(x, x * slope)


@by_dtype
def activation(
    element: Static[Element], record: ActivationRecord, first: int, count: int, thread: int
) -> None:
    """Computes an ungated activation of rows first .. first + count - 1."""
    values, offset = record.width * count, element.size * record.width * first
    x, out, linear, cubic = record.x + offset, record.out + offset, record.linear, record.cubic
    for i in range(0, values, 16):
        at, left = element.size * i, values - i
        loaded = element.load(x + at) if left >= 16 else element.load_first(x + at, left)
        if linear == 0:
            element.store_first(out + at, _relu(loaded) if cubic == 0 else _gelu(loaded), left)
        else:
            element.store_first(out + at, _activated(element, linear, cubic, loaded), left)


def _opened(
    element: Static[Element], silu: Static[bool], record: GatedActivationRecord, gate: f32x16
) -> f32x16:
    """Returns what values of the gate become."""
    if silu:
        scaled = gate * record.factor
        y = element.times_sigmoid(scaled, scaled)
    elif record.exact:
        y = _gelu(gate)
    else:
        y = _activated(element, _LINEAR, _CUBIC, gate)
    return y


def _gated(
    element: Static[Element],
    silu: Static[bool],
    record: GatedActivationRecord,
    first: int,
    count: int,
    thread: int,
) -> None:
    """Computes silu(factor * gate) * up of rows first .. first + count - 1, or gelu_new(gate) * up, or
    gelu(gate) * up."""
    size, rest = element.size * record.width, record.width % 16
    for row in range(first, first + count):
        gate, out = record.gate_up + 2 * size * row, record.out + size * row
        for i in range(0, record.width - 15, 16):
            at = element.size * i
            opened = _opened(element, silu, record, element.load(gate + at))
            element.store(out + at, opened * element.load(gate + size + at))
        if rest:
            at = element.size * (record.width - rest)
            opened = _opened(element, silu, record, element.load_first(gate + at, rest))
            element.store_first(out + at, opened * element.load_first(gate + size + at, rest), rest)


gated_silu = by_dtype(_gated, True, suffix="_silu")
gated_gelu = by_dtype(_gated, False, suffix="_gelu")


@by_dtype
def clamped_swiglu(
    element: Static[Element], record: ClampedSwigluRecord, first: int, count: int, thread: int
) -> None:
    """Computes kernels.ops.layers.activation of rows first .. first + count - 1. NaN of NaN."""
    size = element.size * record.width
    most, least = f32x16(record.limit), f32x16(-record.limit)
    for row in range(first, first + count):
        at, out = record.gate_up + 2 * size * row, record.out + size * row
        for i in range(0, record.width, 16):
            begin, left = element.size * i, min(16, record.width - i)
            gate, up = element.load_first(at + begin, left), element.load_first(at + size + begin, left)
            gate = select(most < gate, most, gate)
            up = select(most < up, most, select(up < least, least, up))
            glu = element.times_sigmoid(gate, gate * f32x16(record.alpha))
            element.store_first(out + begin, (up + f32x16(1.0)) * glu, left)
