"""The exchange of kernels.cpu.runtime.rank_exchange in Python, for ranks without compiled kernels: the same
memory, and the same order of what is written and read. A rank that waits looks every half a millisecond."""

import ctypes
import os
import threading
import time

from kernels.cpu.runtime.records import RankExchange

_SLEEP_S, _SLEEPS = 0.0005, 20


class PlainExchange:
    """In place of that module. For one thread."""

    LINE = 64
    ABORT, POSTED = 0, 0
    SPINS = 100

    def __init__(self) -> None:
        self._fence = threading.Lock()  # for processors that reorder reads and writes of memory

    def exchange_parts(self, exchange: RankExchange) -> None:
        """Posts, unless that is done, and waits for a moment. Writes which rank is missing; if none is,
        copies all parts."""
        if not exchange.is_posted:
            self._post(exchange)
            exchange.is_posted = 1
        exchange.missing = self._missing(exchange, range(exchange.num_ranks), exchange.sequence)
        if exchange.missing < 0 and exchange.count:
            for rank in range(exchange.num_ranks):
                target = exchange.target + rank * exchange.stride
                self._copy(target, self._buffer(exchange, rank), exchange.count)

    def send_part(self, exchange: RankExchange) -> None:
        """Waits for a moment until the other rank has taken what was sent two before. Writes whether it is
        missing; if it is not, posts."""
        exchange.missing = self._missing(exchange, range(1, 2), exchange.sequence - 2)
        if exchange.missing < 0:
            self._post(exchange)

    def receive_part(self, exchange: RankExchange) -> None:
        """Waits for a moment. Writes whether the rank that sends is missing; if it is not, takes its part."""
        exchange.missing = self._missing(exchange, range(1), exchange.sequence)
        if exchange.missing < 0:
            self._copy(exchange.target, self._buffer(exchange, 0), exchange.count)
            self.write_word(self._posted(exchange, exchange.rank), exchange.sequence)

    def _post(self, exchange: RankExchange) -> None:
        if exchange.count:
            self._copy(self._buffer(exchange, exchange.rank), exchange.source, exchange.count)
        self.write_word(self._posted(exchange, exchange.rank), exchange.sequence)

    def read_word(self, address: int) -> int:
        """Returns a word that other processes write; what they wrote before it is seen from then on."""
        with self._fence:
            return ctypes.c_int64.from_address(address).value

    def write_word(self, address: int, value: int) -> None:
        """Writes a word for other processes, behind all that was written before."""
        with self._fence:
            ctypes.c_int64.from_address(address).value = value

    def pause(self, looks: int) -> bool:
        """Waits before a rank is looked at again. looks: so far. Returns False instead if that was often
        enough."""
        if looks < self.SPINS:
            os.sched_yield()
        elif looks < self.SPINS + _SLEEPS:
            time.sleep(_SLEEP_S)
        return looks < self.SPINS + _SLEEPS

    def _missing(self, exchange: RankExchange, ranks: range, number: int) -> int:
        """Returns a rank that has not posted this number yet; -1: all have."""
        looks = exchange.spins
        for rank in ranks:
            while self.read_word(self._posted(exchange, rank)) < number:
                if not self.pause(looks):
                    return rank
                looks += 1
        return -1

    def _copy(self, target: int, source: int, count: int) -> None:
        with self._fence:
            ctypes.memmove(target, source, count)

    def _posted(self, exchange: RankExchange, rank: int) -> int:
        return exchange.memory + self.LINE * (1 + rank) + self.POSTED

    @staticmethod
    def _buffer(exchange: RankExchange, rank: int) -> int:
        return exchange.buffers + (2 * rank + exchange.sequence % 2) * exchange.capacity
