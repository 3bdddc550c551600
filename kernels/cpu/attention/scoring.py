"""Soft caps of scores, and sinks, of kernels.cpu.attention.attention.

score   cap * tanh(scale * score / cap), divided by the scale again: softmax multiplies by it
total   + e ** (sink - largest), after all parts of a row: the sink is a key whose value is zero
"""

from kernels.cpu.attention.vector_loops import SCORES
from kernels.cpu.compiler.language import float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.exp import precise_exp
from kernels.cpu.isa.shuffles import lane_of
from kernels.cpu.isa.simd import load_f32, store_f32
from kernels.cpu.isa.soft_cap import capped
from kernels.cpu.isa.vectors import read_f32, write_f32

_MOST = 80.0
"""Above it e ** x is nearly infinite: a sink that outweighs everything by so much leaves nothing."""


def cap_scores(scores: int, tiles: int, pairs: int, scale: float, cap: float) -> None:
    """Caps the scores of so many pairs, [16 * tiles] float32 each, SCORES bytes from one to the next."""
    for pair in range(pairs):
        first = scores + SCORES * pair
        for at in range(first, first + 64 * tiles, 64):
            store_f32(at, capped(load_f32(at) * scale, cap) / scale)


def add_sink(total: int, sink: int) -> None:
    """Adds the weight of a sink to the sum of a pair's weights. total: address of the sum, float32, with the
    pair's largest score 64 bytes behind it. sink: address of the sink's score, float32."""
    above = min(_MOST, float32(read_f32(sink) - read_f32(total + 64)))
    weight = lane_of(precise_exp(f32x16(above)), 0)
    write_f32(total, float32(read_f32(total) + weight))
