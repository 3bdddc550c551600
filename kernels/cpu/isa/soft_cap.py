"""The soft cap of scores and logits, of 16 values at once: cap * tanh(x / cap).

tanh(z) = 1 - 2 / (1 + e ** (2 z))      to some 1e-7, so that the result is exact to some 1e-7 * cap
"""

from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.exp import precise_exp
from kernels.cpu.isa.simd import select

_MOST = 40.0
"""Where tanh is 1 in float32 long since, and e ** x is finite."""


def capped(x: f32x16, cap: float) -> f32x16:
    """cap * tanh(x / cap). -inf and inf become -cap and cap; of NaN the result is cap."""
    doubled = x * (2.0 / cap)
    doubled = select(doubled < f32x16(_MOST), doubled, f32x16(_MOST))
    doubled = select(doubled > f32x16(-_MOST), doubled, f32x16(-_MOST))
    return (f32x16(1.0) - f32x16(2.0) / (precise_exp(doubled) + 1.0)) * cap
