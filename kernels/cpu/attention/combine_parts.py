"""Parts of split rows (kernels.cpu.attention.split_kv) become results in bfloat16."""

from kernels.cpu.attention.records import AttentionRecord
from kernels.cpu.attention.split_kv import combine_rows
from kernels.cpu.compiler.cache import operation
from kernels.cpu.elementwise.elements import BFLOAT16


@operation
def combine_parts(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    combine_rows(BFLOAT16, record, first, count, thread)
