"""Soft caps of scores, and sinks, of kernels.cpu.attention.attention.

score   cap * tanh(scale * score / cap), divided by the scale again: softmax multiplies by it
total   + e ** (sink - largest), after all parts of a row: the sink is a key whose value is zero
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.attention.vector_loops import SCORES
from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.exp import exp
from kernels.cpu.isa.simd import load_f32, store_f32
from kernels.cpu.isa.soft_cap import capped
from kernels.cpu.isa.vectors import F32, I32, broadcast, load, store, word

_MOST = 80.0
"""Above it e ** x is nearly infinite: a sink that outweighs everything by so much leaves nothing."""


def cap_scores(scores: int, tiles: int, pairs: int, scale: float, cap: float) -> None:
    """Caps the scores of so many pairs, [16 * tiles] float32 each, SCORES bytes from one to the next."""
    for pair in range(pairs):
        first = scores + SCORES * pair
        for at in range(first, first + 64 * tiles, 64):
            store_f32(at, capped(load_f32(at) * scale, cap) / scale)


def _add_sink(builder: Any, total: Any, sink: Any) -> None:
    """See add_sink()."""
    before, score = (load(builder, at, F32) for at in (total, sink))
    above = builder.fsub(score, load(builder, builder.add(total, word(64)), F32))
    most = ir.Constant(F32, _MOST)
    above = builder.select(builder.fcmp_ordered("<", above, most), above, most)
    weight = builder.extract_element(exp(builder, broadcast(builder, above)), ir.Constant(I32, 0))
    store(builder, builder.fadd(before, weight), total)


add_sink = intrinsic(types.void(types.int64, types.int64))(_add_sink)
"""add_sink(total, sink): adds the weight of a sink to the sum of a pair's weights. total: address of the sum,
float32, with the pair's largest score 64 bytes behind it. sink: address of the sink's score, float32."""
