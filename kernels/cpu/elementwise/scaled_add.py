"""x * factor + y, rounded once, 16 values per step."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.elementwise.elements import BFLOAT16, Element
from kernels.cpu.elementwise.records import ScaledAddRecord


def scaled_add_rows(element: Static[Element], record: ScaledAddRecord, first: int, count: int) -> None:
    """Rows first .. first + count - 1."""
    values, offset = record.width * count, element.size * record.width * first
    x, y, out, factor = record.x + offset, record.y, record.out + offset, record.factor
    for i in range(0, values, 16):
        at, left = element.size * i, values - i
        product = (element.load(x + at) if left >= 16 else element.load_first(x + at, left)) * factor
        if y:
            added = y + offset + at
            product = product + (element.load(added) if left >= 16 else element.load_first(added, left))
        element.store_first(out + at, product, left)


@operation
def scaled_add(record: ScaledAddRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    scaled_add_rows(BFLOAT16, record, first, count)
