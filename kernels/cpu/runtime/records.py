"""How a program lies in memory: a head and its records, 256 bytes each (kernels.cpu.runtime.program)."""

import ctypes
from typing import Annotated

from kernels.cpu.compiler.records import Address, OperationRecord, Record, i64, record, u32

FIELDS_BYTES = 112
"""Operation, rows and the fields of an operation, which a program copies from its record."""


@record
class ProgramHead(Record):
    """Stands before the records."""

    count: i64  # of records
    slack: i64  # by how many records a thread may be behind the others; 0: nothing is computed twice
    padding: Annotated[object, ctypes.c_int64 * 30] = None


@record
class ProgramRecord(OperationRecord):
    """An operation's record, and how its units are shared among threads."""

    fields: Annotated[object, ctypes.c_int64 * 12] = None  # of the operation's own record
    units: i64
    grain: u32  # the fewest rows that a thread takes; 0: a product
    repeatable: u32  # whether a unit may be computed twice
    claim: i64  # run << 44 | next unit of the first half << 22 | of the second half
    middle: i64  # where the second half begins
    line: Annotated[object, ctypes.c_int64 * 6] = None
    done: i64  # units that are computed; in a cache line of its own
    end: Annotated[object, ctypes.c_int64 * 7] = None


@record
class ProductRecord(OperationRecord):
    """A matrix product: x [rows, words] times a packed weight, as [rows, columns]. A word is 32 bits: two
    bfloat16 or four 8-bit integers."""

    x: Address
    weight: Address
    params: Address  # of every 16 columns the biases [16] float32, and more where x is integers
    out: Address
    columns: i64
    words: i64
    out_bytes: u32  # of a result; 4: float32, 2: bfloat16
    depth: u32 = 0  # of the tree that adds 2 ** depth leaves (kernels.cpu.matmul.leaves)
    following: Address = 0  # [2] int64: addresses of two blocks of the next product's weight; 0: unknown
    stream: Address = 0  # kernels.cpu.attention.records.PrefetchStream; 0: none


assert ProgramHead.size() == ProgramRecord.size() == 256 and ProgramRecord.offset("units") == FIELDS_BYTES


@record
class RowTarget(Record):
    """A record whose rows are decided while its program runs."""

    record: Address  # of a ProgramRecord
    rows: Address  # of an int64


@record
class DecideRowsRecord(OperationRecord):
    """kernels.cpu.experts.dispatch.decide_rows, whose rows are targets."""

    targets: Address  # [rows] RowTarget


@record
class RankExchange(Record):
    """One exchange of bytes among ranks (kernels.cpu.runtime.rank_exchange)."""

    memory: Address  # that all ranks share: lines of words
    abort: Address  # the abort word
    buffers: Address  # behind the lines
    capacity: i64  # bytes of a buffer
    rank: i64
    num_ranks: i64
    sequence: i64  # the number of the exchange
    source: Address  # [count] bytes, this rank's part
    count: i64
    target: Address  # the parts of all ranks, each [count] bytes
    stride: i64  # bytes from one part to the next
    seconds: i64  # a sleep takes so long, and
    nanoseconds: i64
    spins: i64  # that are left out
    may_sleep: i64  # 0: a rank that waits spins and yields alone
    is_posted: i64
    missing: i64  # a rank that was waited for; -1: none
    peers: Address  # [num_peers] struct pollfd: descriptors that can be read when a process has ended
    num_peers: i64
    most_sleeps: i64  # of one exchange of a program
    failed: i64  # 1: an exchange of a program has ended without all parts; then the next ones do nothing


@record
class ExchangeRowsRecord(OperationRecord):
    """kernels.cpu.runtime.rank_exchange.exchange_rows, whose one row is all that is exchanged."""

    exchange: Address  # of the process's RankExchange
    source: Address  # [num_rows, own_bytes], this rank's part
    own_bytes: i64
    row_bytes: i64  # of the rank that has most
    num_rows: i64
    target: Address  # [parts, num_rows, ...]: of each rank as it has them
    stride: i64  # bytes from one part to the next
    parts: i64  # how many are copied: those of the first ranks
