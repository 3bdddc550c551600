"""Limits how much a frontend works on at once: calls, open streams, control calls, and bytes being tokenized.

They are checked before anything is tokenized, so that a rejection is returned within milliseconds. No tenant
can take more than a share of the slots and of the bytes, so that one of them cannot lock out the others.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import inf
from time import monotonic

from frontend.auth.caller import Caller
from frontend.errors import FrontendFull
from pagewire.retry_after import RetryAfter

MAX_CONTROL_CALLS = 1024
"""Calls at once that are answered without generation or tokenization, such as Abort."""
MAX_REQUEST_STREAMS = 64
"""Calls of one tenant at once whose client sends any number of messages, such as GenerateMultiplexed. gRPC
keeps what has arrived of the next message of each, and does not say that it has begun."""
MAX_MEDIA_HELD = 4 << 30
"""Bytes of media, as the encoder takes them, of all requests that a frontend has in flight."""
TENANT_SHARE = 0.5
"""Share of each kind of slots that a tenant may hold. Callers of public methods count as one tenant; without
authentication tenants are not told apart, and there are no shares."""


class _Held:
    """Counts what is held of one kind, in all and by tenant."""

    def __init__(self, kind: str, size: int, refused: Counter[str], clock: Callable[[], float]) -> None:
        """size: of all tenants together; 0: no limit. refused: counts rejections, by kind."""
        self.num_held = 0
        self._kind, self._size, self._refused, self._clock = kind, size, refused, clock
        self._held_by: Counter[str] = Counter()
        self._retry_after = RetryAfter()

    def serves_others(self, tenant: str) -> bool:
        """Whether something is held by other tenants."""
        return len(self._held_by) > (tenant in self._held_by)

    @contextmanager
    def _hold(self, tenant: str | None, amount: int, *, exceeds: bool) -> Iterator[None]:
        """Counts an amount within the block. Raises FrontendFull if it exceeds a limit."""
        if exceeds:
            self._refused[self._kind] += 1
            raise FrontendFull(self._retry_after.offer(1, self._clock()))
        self._count(tenant, amount)
        try:
            yield
        finally:
            self._count(tenant, -amount)
            self._retry_after.freed(1, self._clock())

    def _count(self, tenant: str | None, change: int) -> None:
        self.num_held += change
        if tenant is not None:
            self._held_by[tenant] += change
            if not self._held_by[tenant]:
                del self._held_by[tenant]


class SlotPool(_Held):
    """Counts slots of one kind."""

    most = inf
    """Slots of one tenant, beside its share."""

    def slot(self, caller: Caller | None) -> AbstractContextManager[None]:
        """Holds a slot within the block. caller: None: the method is public. Raises FrontendFull."""
        tenant, size = _tenant_of(caller), self._size
        share = min(TENANT_SHARE * size or inf, self.most)
        exceeds = 0 < size <= self.num_held or (tenant is not None and self._held_by[tenant] >= share)
        if not exceeds and 2 * self.num_held <= size:
            self._retry_after.forget()
        return self._hold(tenant, 1, exceeds=exceeds)


class ByteBudget(_Held):
    """Counts bytes that are being worked on."""

    def reading(self, size: int, caller: Caller | None) -> AbstractContextManager[None]:
        """Counts a message of `size` bytes as being tokenized within the block. Raises FrontendFull.

        A message larger than the limit is admitted when no other is being tokenized, and one larger than a
        tenant's share when none of the tenant is.
        """
        tenant = _tenant_of(caller)
        own = self._held_by[tenant] if tenant is not None else 0
        exceeds = bool(self._size) and (
            (self.num_held > 0 and self.num_held + size > self._size)
            or (own > 0 and own + size > TENANT_SHARE * self._size)
        )
        return self._hold(tenant, size, exceeds=exceeds)


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
        """Whether other tenants have calls that generate or tokenize."""
        self.stream = self._streams.slot
        """Holds a slot for a stream that may stay open without doing anything."""
        self._request_streams = SlotPool("request_streams", 0, self.refused, clock)
        self._request_streams.most = MAX_REQUEST_STREAMS
        self.request_stream = self._request_streams.slot
        """Counts a call whose client sends any number of messages, besides the slot that it holds."""
        self.control = self._controls.slot
        """Holds a slot for any other call."""
        self._media = ByteBudget("media", MAX_MEDIA_HELD, self.refused, clock)
        self.media = self._media.reading
        """Counts the bytes of a request's media until it ends: another core may need them."""
        self._bytes = ByteBudget("bytes", max_bytes, self.refused, clock)
        self.reading = self._bytes.reading
        """Counts the bytes of a message while it is being tokenized."""

    @property
    def num_bytes(self) -> int:
        """Bytes being tokenized now."""
        return self._bytes.num_held

    @property
    def num_calls(self) -> int:
        """Calls that generate or tokenize now."""
        return self._calls.num_held
