"""x * factor + y in bfloat16, rounded once, 16 values per step. Widths are multiples of 16."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.elementwise.records import ScaledAddRecord
from kernels.cpu.isa.simd import load_bf16, store_bf16


@operation
def scaled_add(record: ScaledAddRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    x, y, out, factor, size = record.x, record.y, record.out, record.factor, 2 * record.width
    for at in range(size * first, size * (first + count), 32):
        product = load_bf16(x + at) * factor
        if y:
            store_bf16(out + at, product + load_bf16(y + at))
        else:
            store_bf16(out + at, product)
