"""kernels.ops.layers.adjust_logits in float32, 16 values per step; the last step of a row may compute some of
the values before it again. Rows of at least 16 values."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.elementwise.records import AdjustLogitsRecord
from kernels.cpu.isa.simd import load_f32, store_f32
from kernels.cpu.isa.soft_cap import capped


@operation
def adjust_logits(record: AdjustLogitsRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    scale, cap, size = record.scale, record.cap, 4 * record.width
    for row in range(first, first + count):
        x, out = record.x + size * row, record.out + size * row
        for begin in range(0, size, 64):
            at = min(begin, size - 64)
            scaled = load_f32(x + at) * scale
            if cap > 0:
                store_f32(out + at, capped(scaled, cap))
            else:
                store_f32(out + at, scaled)
