"""Lists the pairs of experts and tokens that have an adapter, for kernels.cpu.adapters.adapt. Pairs of one
expert and one adapter follow one another, so that its weights are read once for all of them."""

from kernels.cpu.adapters.records import AdaptedLayer, PairAdaptersRecord
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_i64, write_i64

LAYER_BYTES = AdaptedLayer.size()


@operation
def pair_adapters(record: PairAdaptersRecord, first: int, count: int, thread: int) -> None:
    """All tokens. An expert's pairs stay in the order of the tokens, which are sorted by adapter."""
    starts, top_k = record.starts, record.top_k
    for expert in range(record.num_experts):
        write_i64(starts + 8 * expert, 0)
    for i in range(record.count):
        experts = record.experts + 8 * top_k * read_i64(record.tokens + 8 * i)
        for j in range(top_k):
            at = starts + 8 * read_i64(experts + 8 * j)
            write_i64(at, read_i64(at) + 1)
    begin = 0
    for expert in range(record.num_experts):
        size = read_i64(starts + 8 * expert)
        write_i64(starts + 8 * expert, begin)
        begin += size
    for i in range(record.count):
        pair = top_k * read_i64(record.tokens + 8 * i)
        for j in range(top_k):
            expert = read_i64(record.experts + 8 * (pair + j))
            to = read_i64(starts + 8 * expert)
            write_i64(starts + 8 * expert, to + 1)
            write_i64(record.pairs + 8 * to, read_i64(record.places + 8 * (pair + j)))
            write_i64(record.pair_adapters + 8 * to, read_i64(record.adapters + 8 * i) + LAYER_BYTES * expert)
