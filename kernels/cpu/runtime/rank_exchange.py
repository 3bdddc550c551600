"""Tensor-parallel ranks of one host exchange bytes through memory that their processes share.

    line 0              the abort word: 0, or 1 + the rank that has ended the group. Some of the ranks that
                        exchange by themselves have memory of their own, and this word of all
    line 1 + rank       posted      the number of the rank's last exchange
                        sleepers    threads that wait for the next one
    buffers             of each rank two, of capacity bytes: that of even exchanges, and that of odd ones

In an exchange a rank writes its part into its buffer, posts the number, waits until all others have posted
it, and copies their parts. A rank that has posted exchange n has read all of n - 1, and a rank that has seen
all post n may write its buffer of n + 1, which was that of n - 1: so one wait is enough.

From one rank of two to the other, bytes may also be sent: number n is written as soon as the other one has
taken n - 2, and nothing else is waited for. The one that receives posts a number when it has taken it.

A rank spins for about 50 us, then lets others have its core, then sleeps on the posted word; a rank that
waits looks now and then whether the others live (worker.cpu.rank_memory). In a program (exchange_rows) it
looks itself, and is slower to sleep: to wake a processor that halts takes longer than most exchanges. Where
another rank has ended, or given up, this exchange fails and those behind it do nothing, so that the program
ends, and then the caller asks RankLink.check().
"""

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import compiled, operation
from kernels.cpu.compiler.language import external
from kernels.cpu.isa import atomics
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.runtime.records import ExchangeRowsRecord, RankExchange

LINE = 64
ABORT, POSTED, SLEEPERS = 0, 0, 8
"""Offsets: in line 0, and in the line of a rank."""
SPINS, YIELDS = 2000, 20
YIELDING_ROUNDS = 100
"""How often a rank in a program looks whether the others live before it sleeps, YIELDS apart."""
_FUTEX = OPERATIONS.futex
_WAIT, _WAKE = 0, 1
_TIMEOUT = RankExchange.offset("seconds")

_syscall = external("syscall", types.int64(*[types.int64] * 7))
_memcpy = external("memcpy", types.int64(*[types.int64] * 3))
_poll = external("poll", types.int32(types.int64, types.int64, types.int32))


def _line(exchange: RankExchange, rank: int) -> int:
    return exchange.memory + LINE * (1 + rank)


def _buffer(exchange: RankExchange, rank: int) -> int:
    number = 2 * rank + exchange.sequence % 2
    return exchange.buffers + number * exchange.capacity


def _post(exchange: RankExchange) -> None:
    """Writes this rank's part, and says so."""
    if exchange.count > 0:
        _memcpy(_buffer(exchange, exchange.rank), exchange.source, exchange.count)
    _say(exchange)


def _say(exchange: RankExchange) -> None:
    """Posts the number, and wakes those that sleep."""
    own = _line(exchange, exchange.rank)
    atomics.add(own + POSTED, exchange.sequence - atomics.read(own + POSTED))
    if atomics.read(own + SLEEPERS) > 0:
        _syscall(_FUTEX, own + POSTED, _WAKE, 1 << 30, 0, 0, 0)


def _sleep(exchange: RankExchange, line: int, seen: int) -> None:
    """Until the rank of this line posts, or for as long as the record says."""
    atomics.add(line + SLEEPERS, 1)
    if atomics.read(line + POSTED) == seen:
        _syscall(_FUTEX, line + POSTED, _WAIT, seen & 0xFFFFFFFF, exchange.address + _TIMEOUT, 0, 0)
    atomics.add(line + SLEEPERS, -1)


def _has_posted(exchange: RankExchange, rank: int, number: int) -> bool:
    """Waits for a moment, with one sleep at the end if it may."""
    line, spins = _line(exchange, rank), exchange.spins
    seen = atomics.read(line + POSTED)
    while seen < number and spins < SPINS + YIELDS:
        if spins < SPINS:
            atomics.pause()
        else:
            atomics.yield_core()
        spins += 1
        seen = atomics.read(line + POSTED)
    if seen < number and exchange.may_sleep != 0:
        _sleep(exchange, line, seen)
        seen = atomics.read(line + POSTED)
    return seen >= number


def _missing(exchange: RankExchange, first: int, end: int, number: int) -> int:
    """Returns a rank from `first` to before `end` that has not posted this number yet; -1: all have."""
    for rank in range(first, end):
        if not _has_posted(exchange, rank, number):
            return rank
    return -1


@compiled
def exchange_parts(exchange: RankExchange) -> None:
    """Posts, unless that is done, and waits for a moment. Writes which rank is missing; if none is, copies
    all parts."""
    if exchange.is_posted == 0:
        _post(exchange)
        exchange.is_posted = 1
    exchange.missing = _missing(exchange, 0, exchange.num_ranks, exchange.sequence)
    if exchange.missing < 0 and exchange.count > 0:
        for rank in range(exchange.num_ranks):
            _memcpy(exchange.target + rank * exchange.stride, _buffer(exchange, rank), exchange.count)


@compiled
def send_part(exchange: RankExchange) -> None:
    """Waits for a moment until the other rank has taken what was sent two before. Writes whether it is
    missing; if it is not, posts."""
    exchange.missing = _missing(exchange, 1, 2, exchange.sequence - 2)
    if exchange.missing < 0:
        _post(exchange)


@compiled
def receive_part(exchange: RankExchange) -> None:
    """Waits for a moment. Writes whether the rank that sends is missing; if it is not, takes its part."""
    exchange.missing = _missing(exchange, 0, 1, exchange.sequence)
    if exchange.missing < 0:
        _memcpy(exchange.target, _buffer(exchange, 0), exchange.count)
        _say(exchange)


def _is_over(exchange: RankExchange) -> bool:
    """Whether another rank has ended the group, or its process has ended."""
    if atomics.read(exchange.abort) != 0:
        return True
    ended: int = _poll(exchange.peers, exchange.num_peers, 0)
    return ended > 0


def _await(exchange: RankExchange, first: int, end: int, number: int) -> None:
    """Returns when these ranks have posted a number, or the exchange has failed."""
    exchange.spins, exchange.may_sleep, rounds = 0, 0, 0
    exchange.missing = _missing(exchange, first, end, number)
    while exchange.missing >= 0 and exchange.failed == 0:
        if rounds >= YIELDING_ROUNDS + exchange.most_sleeps or _is_over(exchange):
            exchange.failed = 1
        else:
            exchange.spins = SPINS
            exchange.may_sleep = 1 if rounds >= YIELDING_ROUNDS else 0
            exchange.missing = _missing(exchange, first, end, number)
            rounds += 1


@operation
def exchange_rows(record: ExchangeRowsRecord, first: int, count: int, thread: int) -> None:
    """Exchanges all rows, in pieces of a buffer's size, of which all ranks count as many."""
    exchange = RankExchange.at(record.exchange)
    own, size, begin = record.num_rows * record.own_bytes, record.num_rows * record.row_bytes, 0
    while begin < size and exchange.failed == 0:
        exchange.sequence += 1
        exchange.source, exchange.count = record.source + begin, min(exchange.capacity, own - begin)
        _post(exchange)
        _await(exchange, 0, exchange.num_ranks, exchange.sequence)
        if exchange.failed == 0:
            for rank in range(record.parts):
                to = record.target + rank * record.stride + begin
                _memcpy(to, _buffer(exchange, rank), min(exchange.capacity, size - begin))
        begin += exchange.capacity


@operation
def send_rows(record: ExchangeRowsRecord, first: int, count: int, thread: int) -> None:
    """Sends all rows to rank 1 of two, in pieces of a buffer's size."""
    exchange = RankExchange.at(record.exchange)
    size, begin = record.num_rows * record.own_bytes, 0
    while begin < size and exchange.failed == 0:
        exchange.sequence += 1
        _await(exchange, 1, 2, exchange.sequence - 2)
        if exchange.failed == 0:
            exchange.source = record.source + begin
            exchange.count = min(exchange.capacity, size - begin)
            _post(exchange)
        begin += exchange.capacity


@operation
def receive_rows(record: ExchangeRowsRecord, first: int, count: int, thread: int) -> None:
    """Takes all rows from rank 0 of two."""
    exchange = RankExchange.at(record.exchange)
    size, begin = record.num_rows * record.row_bytes, 0
    while begin < size and exchange.failed == 0:
        exchange.sequence += 1
        _await(exchange, 0, 1, exchange.sequence)
        if exchange.failed == 0:
            _memcpy(record.target + begin, _buffer(exchange, 0), min(exchange.capacity, size - begin))
            _say(exchange)
        begin += exchange.capacity


@compiled
def read_word(address: int) -> int:
    """Returns a word that other processes write; what they wrote before it is seen from then on."""
    return atomics.read(address)


@compiled
def write_word(address: int, value: int) -> None:
    """Writes a word for other processes, behind all that was written before."""
    atomics.write(address, value)
