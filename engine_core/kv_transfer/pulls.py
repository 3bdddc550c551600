"""Pulls: a request whose prefix another engine core holds begins with copies of that core's blocks.

    LeaseBlocks      to the holder: the blocks that this cache lacks
    LeasedBlocks     which of them it has, and where its worker sends them
    ReadBlocks       to the worker: free blocks of this pool are written, in a thread beside the steps
    BlocksRead       they are written
    EndLease         to the holder
    LeaseEnded       what was read is right: the blocks enter the prefix cache, where the request finds them

Without any of the answers within its time the request begins all the same, and computes: it has the same
tokens either way. Blocks that a thread may still write to are freed when the worker has answered.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from itertools import count
from typing import Protocol

from engine_core.context import CoreContext
from engine_core.kv_cache.host_swap import UNMEASURED, SwapCosts
from engine_core.kv_transfer.leases import LEASE_S, NO_BLOCK
from engine_core.request import Request
from pagewire.internal.v1.engine_pb2 import (
    EndLease,
    EngineMessage,
    FrontendMessage,
    LeaseBlocks,
    LeasedBlocks,
    RenewLease,
)
from pagewire.internal.v1.worker_pb2 import BlocksRead, ReadBlocks
from pagewire.ipc.columns import pack_u32, unpack_u32

log = logging.getLogger(__name__)

LEAST_ANSWER_S = 0.05
"""Seconds until the first answer for a new request is given up at the earliest; later where computing takes
longer. A request that has output would be computed a second time, and waits for ANSWER_S."""
ANSWER_S = 0.5
"""Seconds until an answer of another core is given up; and beyond its expected time, a transfer."""
SLOWNESS = 10.0
"""How much longer than at the last rate a transfer may take."""
FIRST_RATE = 0.5e9
"""Bytes per second, before any transfer was measured."""
FORGETTING = 1.2
"""By how much the rate grows, up to the first one, with each request for which no transfer pays."""
MOST_FREE = 0.5
"""Share of the free blocks that a pull may take: what arrives meanwhile needs some, too."""


class Peers(Protocol):
    """Connections to other engine cores."""

    def send(self, address: str, message: FrontendMessage) -> bool:
        """Sends without waiting, and connects before if needed. Returns False for an address that cannot be
        used."""

    def take(self) -> Sequence[tuple[str, EngineMessage]]:
        """Returns the messages that have come since the last call, each with the address of its sender."""

    def close(self, address: str) -> None:
        """Ends a connection. One that does not exist is no error."""


class BlockReader(Protocol):
    """The worker."""

    def read_blocks(self, order: ReadBlocks) -> None:
        """Begins to read blocks of another worker, behind the plans before; returns at once."""

    def stop_reading(self, number: int) -> None:
        """Has a ReadBlocks answered soon."""

    def take_blocks_read(self) -> Sequence[BlocksRead]:
        """Returns the answers since the last call."""


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """How the blocks of a core move."""

    peers: Peers | None = None
    """None: this core pulls none."""
    address: str = ""
    """As Ready.transfer_address."""
    block_bytes: int = 0
    costs: SwapCosts = UNMEASURED

    def namespace(self, secret: bytes) -> bytes:
        """Returns Welcome.transfer_namespace. secret: of the prefix cache."""
        if self.peers is None or not self.address:
            return b""
        return blake2b(b"namespace of blocks", digest_size=16, key=secret).digest()


NO_TRANSFER = TransferOptions()


class Outcome(Enum):
    """What became of a pull; a label of metrics."""

    PULLED = "pulled"
    NOTHING = "nothing"
    """The holder had none of the blocks, or pulling them takes longer than computing."""
    LATE = "late"
    """An answer has not come in time."""
    FULL = "full"
    """This core has too few free blocks, or others wait for those of the pull while nothing runs."""
    FAILED = "failed"
    """The worker could not read them, or the holder has reused one meanwhile."""
    ENDED = "ended"
    """The request has ended before."""


class _Phase(Enum):
    ASKED = 1
    READING = 2
    CHECKING = 3
    STOPPING = 4  # the request has begun, or has ended; the worker has not answered yet


@dataclass(slots=True, eq=False)
class _Pull:
    number: int
    request: Request
    holder: str
    contents: list[bytes]
    began: float
    until: float
    phase: _Phase = _Phase.ASKED
    renew_at: float = 0.0
    targets: dict[int, bytes] = field(default_factory=dict)
    """Block of this pool -> its content."""


class Pulls:
    """The pulls of one core. A Supply of Preparation."""

    def __init__(self, context: CoreContext, worker: BlockReader, options: TransferOptions) -> None:
        self._scheduler, self._counters = context.scheduler, context.counters
        self._clock, self._worker, self._options = context.clock, worker, options
        self._numbers = count(1)
        self._pulls: dict[int, _Pull] = {}  # by number
        self._by_request: dict[Request, _Pull] = {}  # those that wait
        self._has_ended = False  # since the last review()
        self.rate = FIRST_RATE
        """Bytes per second that are expected: those of the last transfer, and of the first one later."""

    def __len__(self) -> int:
        return len(self._pulls)

    def prepare(self, request: Request) -> bool:
        """Returns whether the request may begin. Its first call begins the pull."""
        if not request.holder:
            return True
        if request not in self._by_request:
            self._begin(request)
        return not request.holder

    def review(self) -> bool:
        if not self._pulls:
            return False
        now, self._has_ended = self._clock(), False
        assert self._options.peers is not None
        for address, message in self._options.peers.take():
            self._take(address, message, now)
        for read in self._worker.take_blocks_read():
            if read.number in self._pulls:
                self._blocks_read(self._pulls[read.number], read, now)
        for pull in list(self._by_request.values()):
            self._look(pull, now)
            if self._scheduler.waits_for_held and pull.phase is _Phase.READING:
                self._end(pull, Outcome.FULL)
        return self._has_ended

    def _begin(self, request: Request) -> None:
        """Asks the holder, where that pays; otherwise the request has no holder any more."""
        contents = self._missing(request)
        pays = self._pays(len(contents))
        if not pays:  # the last one may have been slow by chance: after a while another one is tried
            self.rate = min(FORGETTING * self.rate, FIRST_RATE)
        if self._scheduler.quarantine.is_to_be_isolated(request.key) or not pays:
            request.holder = ""
            return
        number, now = next(self._numbers), self._clock()
        until = now + self._patience(request, len(contents))
        pull = _Pull(number, request, request.holder, contents, now, until, renew_at=now + LEASE_S / 4)
        self._pulls[number] = self._by_request[request] = pull
        if not self._send(pull, lease_blocks=LeaseBlocks(lease=number, contents=b"".join(contents))):
            self._end(pull, Outcome.LATE)

    def _missing(self, request: Request) -> list[bytes]:
        """Returns the contents of blocks that its sequences can use and that are not cached."""
        if self._options.peers is None or not self._options.address:
            return []
        cache = self._scheduler.prefix_cache
        return list(dict.fromkeys(each for one in request.sequences for each in cache.missing(one)))

    def _pays(self, num_blocks: int) -> bool:
        """Whether so many blocks come sooner than they are computed."""
        moving_us = 1e6 * num_blocks * self._options.block_bytes / self.rate
        computing_us = self._computing_us(num_blocks)
        return num_blocks > 0 and (not computing_us or moving_us < computing_us)

    def _computing_us(self, num_blocks: int) -> float:
        """Returns what computing so many blocks takes; 0: unknown."""
        per_token = self._options.costs.prefill_us_per_token
        return num_blocks * self._scheduler.tables.block_size * per_token

    def _patience(self, request: Request, num_blocks: int) -> float:
        """Returns for how many seconds the first answer is worth waiting."""
        computing_s = self._computing_us(num_blocks) / 1e6
        if not computing_s or any(sequence.output for sequence in request.sequences):
            return ANSWER_S
        return min(max(computing_s, LEAST_ANSWER_S), ANSWER_S)

    def _take(self, address: str, message: EngineMessage, now: float) -> None:
        """Takes what a holder says. Anything that it says of a lease of another holder is not read."""
        kind = message.WhichOneof("message")
        if kind not in ("leased_blocks", "lease_ended"):
            return
        answer = message.leased_blocks if kind == "leased_blocks" else message.lease_ended
        pull = self._pulls.get(answer.lease)
        if pull is None or pull.holder != address:
            return
        if kind == "leased_blocks" and pull.phase is _Phase.ASKED:
            self._read(pull, message.leased_blocks, now)
        elif kind == "lease_ended" and pull.phase is _Phase.CHECKING:
            if message.lease_ended.stands:
                for block, content in pull.targets.items():
                    self._scheduler.prefix_cache.adopt(block, content)
            self._end(pull, Outcome.PULLED if message.lease_ended.stands else Outcome.FAILED)

    def _read(self, pull: _Pull, answer: LeasedBlocks, now: float) -> None:
        """Has the worker read the blocks that the holder has."""
        blocks = unpack_u32(answer.blocks)
        if len(blocks) != len(pull.contents) or not answer.address:
            blocks = [NO_BLOCK] * len(pull.contents)
        pairs = zip(blocks, pull.contents, strict=True)
        found = {content: block for block, content in pairs if block != NO_BLOCK}
        pool = self._scheduler.pool
        if not self._pays(len(found)):
            self._end(pull, Outcome.NOTHING)
        elif len(found) > MOST_FREE * pool.num_free:
            self._end(pull, Outcome.FULL)
        else:
            targets = self._scheduler.tables.take(pull, len(found))
            pull.targets = dict(zip(targets, found, strict=True))
            pull.phase = _Phase.READING
            pull.until = now + ANSWER_S + SLOWNESS * len(found) * self._options.block_bytes / self.rate
            columns = pack_u32(list(found.values())), pack_u32(targets)
            self._worker.read_blocks(
                ReadBlocks(number=pull.number, address=answer.address, blocks=columns[0], targets=columns[1])
            )

    def _blocks_read(self, pull: _Pull, read: BlocksRead, now: float) -> None:
        num_bytes = len(pull.targets) * self._options.block_bytes
        if not read.problem and num_bytes:
            self.rate = 1e6 * num_bytes / max(read.duration_us, 1)
        if pull.phase is _Phase.STOPPING:
            self._forget(pull)
        elif read.problem:
            log.info("blocks of another engine core cannot be read: %s", read.problem)
            self._send(pull, end_lease=EndLease(lease=pull.number))
            pull.phase = _Phase.CHECKING
            self._end(pull, Outcome.FAILED)
        else:
            pull.phase, pull.until = _Phase.CHECKING, now + ANSWER_S
            self._send(pull, end_lease=EndLease(lease=pull.number))

    def _look(self, pull: _Pull, now: float) -> None:
        """Ends a pull that is late, or whose request has ended; extends the lease of another one."""
        if not pull.request.num_live:
            self._end(pull, Outcome.ENDED)
        elif now >= pull.until:
            self._end(pull, Outcome.LATE)
        elif pull.phase is _Phase.READING and now >= pull.renew_at:
            pull.renew_at = now + LEASE_S / 4
            self._send(pull, renew_lease=RenewLease(lease=pull.number))

    def _end(self, pull: _Pull, outcome: Outcome) -> None:
        """Lets the request begin, with whatever the prefix cache has."""
        self._has_ended = True
        self._counters.kv_pulls[outcome.value] += 1
        if outcome is Outcome.PULLED:
            self._counters.kv_pulled_blocks += len(pull.targets)
        pull.request.holder = ""
        pull.request.history.transfer = self._clock() - pull.began
        del self._by_request[pull.request]
        is_reading = pull.phase is _Phase.READING
        if pull.phase is not _Phase.CHECKING:
            self._send(pull, end_lease=EndLease(lease=pull.number))
        if is_reading:
            pull.phase = _Phase.STOPPING
            self._worker.stop_reading(pull.number)
        else:
            self._forget(pull)

    def _forget(self, pull: _Pull) -> None:
        """Frees its blocks; those that are cached can be found. The last pull of a holder ends the
        connection."""
        self._scheduler.tables.release(pull)
        del self._pulls[pull.number]
        if not any(other.holder == pull.holder for other in self._pulls.values()):
            assert self._options.peers is not None
            self._options.peers.close(pull.holder)

    def _send(self, pull: _Pull, **message: LeaseBlocks | RenewLease | EndLease) -> bool:
        assert self._options.peers is not None
        return self._options.peers.send(pull.holder, FrontendMessage(**message))  # type: ignore[arg-type]
