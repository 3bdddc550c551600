"""Limits how much a frontend works on at once: calls, open streams, control calls, and bytes being tokenized.

They are checked before anything is tokenized, so that a rejection is returned within milliseconds. No tenant
can take more than a share of the slots and of the bytes, so that one of them cannot lock out the others.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from frontend.auth.caller import Caller
from frontend.errors import FrontendFull
from pagewire.retry_after import RetryAfter

MAX_CONTROL_CALLS = 1024
"""Calls at once that are answered without generation or tokenization, such as Abort."""
MAX_REQUEST_STREAMS = 64
"""Calls of one tenant at once whose client sends any number of messages, such as GenerateMultiplexed. gRPC
keeps what has arrived of the next message of each, and does not say that it has begun."""
TENANT_SHARE = 0.5
"""Share of each kind of slots that a tenant may hold. Callers of public methods count as one tenant; without
authentication tenants are not told apart, and there are no shares."""


class _HeldByTenant:
    """Counts what is held, in all and by tenant."""

    def __init__(self) -> None:
        self.num_held = 0
        self._held_by: Counter[str] = Counter()

    def serves_others(self, caller: Caller) -> bool:
        """Whether something is held by tenants other than the caller's."""
        return len(self._held_by) > (caller.tenant in self._held_by)

    def _count(self, tenant: str | None, change: int) -> None:
        self.num_held += change
        if tenant is not None:
            self._held_by[tenant] += change
            if not self._held_by[tenant]:
                del self._held_by[tenant]


class SlotPool(_HeldByTenant):
    """Counts slots of one kind, in all and by tenant."""

    def __init__(self, kind: str, size: int, refused: Counter[str], clock: Callable[[], float]) -> None:
        """size: 0: no limit. refused: counts rejections, by kind."""
        super().__init__()
        self._kind, self._size, self._refused, self._clock = kind, size, refused, clock
        self._retry_after = RetryAfter()

    @contextmanager
    def slot(self, caller: Caller | None) -> Iterator[None]:
        """Holds a slot within the block. caller: None: the method is public. Raises FrontendFull."""
        tenant = _tenant_of(caller)
        share = TENANT_SHARE * self._size
        if self._size and (
            self.num_held >= self._size or (tenant is not None and self._held_by[tenant] >= share)
        ):
            self._refused[self._kind] += 1
            raise FrontendFull(self._retry_after.offer(1, self._clock()))
        if 2 * self.num_held <= self._size:
            self._retry_after.forget()
        self._count(tenant, 1)
        try:
            yield
        finally:
            self._count(tenant, -1)
            self._retry_after.freed(1, self._clock())


class RequestStreams(_HeldByTenant):
    """Counts the calls of each tenant whose client sends any number of messages."""

    def __init__(self, refused: Counter[str], clock: Callable[[], float]) -> None:
        """refused: counts rejections, as "request_streams"."""
        super().__init__()
        self._refused, self._clock = refused, clock
        self._retry_after = RetryAfter()

    @contextmanager
    def slot(self, caller: Caller | None) -> Iterator[None]:
        """Counts a call within the block. Raises FrontendFull for one more than MAX_REQUEST_STREAMS."""
        tenant = _tenant_of(caller)
        if tenant is not None and self._held_by[tenant] >= MAX_REQUEST_STREAMS:
            self._refused["request_streams"] += 1
            raise FrontendFull(self._retry_after.offer(1, self._clock()))
        self._count(tenant, 1)
        try:
            yield
        finally:
            self._count(tenant, -1)
            self._retry_after.freed(1, self._clock())


class ByteBudget(_HeldByTenant):
    """Counts bytes that are being worked on, in all and by tenant."""

    def __init__(self, size: int, refused: Counter[str], clock: Callable[[], float]) -> None:
        """size: 0: no limit. refused: counts rejections, as "bytes"."""
        super().__init__()
        self._size, self._refused, self._clock = size, refused, clock
        self._retry_after = RetryAfter()

    @contextmanager
    def reading(self, size: int, caller: Caller | None) -> Iterator[None]:
        """Counts a message of `size` bytes as being tokenized within the block. Raises FrontendFull.

        A message larger than the limit is admitted when no other is being tokenized, and one larger than a
        tenant's share when none of the tenant is.
        """
        tenant = _tenant_of(caller)
        own = self._held_by[tenant] if tenant is not None else 0
        if self._size and (
            (self.num_held and self.num_held + size > self._size)
            or (own and own + size > TENANT_SHARE * self._size)
        ):
            self._refused["bytes"] += 1
            raise FrontendFull(self._retry_after.offer(1, self._clock()))
        self._count(tenant, size)
        try:
            yield
        finally:
            self._count(tenant, -size)
            self._retry_after.freed(1, self._clock())


def _tenant_of(caller: Caller | None) -> str | None:
    """Returns whose share a call counts against: "" for public methods, None where there are no shares."""
    return caller.tenant if caller is not None else ""


class ConcurrencyLimits:
    """Holds slots, and rejects what exceeds the limits. Belongs to the event loop's thread."""

    def __init__(self, max_calls: int, max_bytes: int, clock: Callable[[], float] = monotonic) -> None:
        """max_calls: of calls, and of open streams. max_bytes: being tokenized. 0: no limit."""
        self.refused: Counter[str] = Counter()
        """Rejected calls since the start, by the limit that they met."""
        self._calls = SlotPool("calls", max_calls, self.refused, clock)
        self._streams = SlotPool("streams", max_calls, self.refused, clock)
        self._controls = SlotPool("controls", MAX_CONTROL_CALLS, self.refused, clock)
        self.call = self._calls.slot
        """Holds a slot for a call that generates or tokenizes."""
        self.serves_others = self._calls.serves_others
        """Whether tenants other than a caller's have calls that generate or tokenize."""
        self.stream = self._streams.slot
        """Holds a slot for a stream that may stay open without doing anything."""
        self._request_streams = RequestStreams(self.refused, clock)
        self.request_stream = self._request_streams.slot
        """Counts a call whose client sends any number of messages, besides the slot that it holds."""
        self.control = self._controls.slot
        """Holds a slot for any other call."""
        self._bytes = ByteBudget(max_bytes, self.refused, clock)
        self.reading = self._bytes.reading
        """Counts the bytes of a message while it is being tokenized."""

    @property
    def num_bytes(self) -> int:
        """Bytes being tokenized now."""
        return self._bytes.num_held

    @property
    def num_request_streams(self) -> int:
        """Calls whose clients may send any number of messages now."""
        return self._request_streams.num_held

    @property
    def num_calls(self) -> int:
        """Calls that generate or tokenize now."""
        return self._calls.num_held
