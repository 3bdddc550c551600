"""Bounds how many request messages are received at once, over gRPC and over HTTP together.

What has arrived of a message is in memory before its size is known, and it may be the most of
--max-request-bytes. So a slot stands for as many bytes, and all of them together have a bound, of which each
tenant may have half of what the others leave. The sizes of the messages that a tenant sends then say how many
of its next ones are received at once.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from frontend.auth.caller import Caller
from frontend.tenant_turns import TenantTurns

NO_TENANT = ""
"""Whose slots the callers of public methods share."""
MAX_HELD_BYTES = 512 << 20
"""Bytes of all messages of tenants that are being received by a frontend, if each is as large as it may be;
but two messages are always received."""
MAX_RECEIVED = 64
"""Request messages of one tenant that are received at once."""
MAX_RECEIVED_BYTES = 32 << 20
"""Bytes of them, if they are as large as those before; but one message is always received."""
FIRST_SIZE = 1 << 20
"""Bytes that the messages of a tenant are expected to have while none has come."""


class ReceivingSlots:
    """Counts the messages that are being received, by tenant. Belongs to the event loop's thread."""

    def __init__(self, max_request_bytes: int) -> None:
        """max_request_bytes: of one message."""
        self._turns = TenantTurns(max(2, MAX_HELD_BYTES // max_request_bytes), self._share)
        self._sizes: dict[str, int] = {}
        """Bytes that the next message of a tenant is expected to have; of tenants that have slots."""

    async def take(self, tenant: str) -> None:
        """Waits until the tenant may have another slot, first come, first served, and takes it."""
        await self._turns.begin(tenant)

    def has_room(self, tenant: str) -> bool:
        """Returns whether the tenant may have another slot now."""
        return self._turns.has_room(tenant)

    def num_held(self, tenant: str) -> int:
        """Returns how many slots the tenant holds."""
        return self._turns.num_running(tenant)

    def arrived(self, tenant: str, size: int) -> None:
        """Notes the bytes of a message that has arrived: the next ones are expected to have as many, or half
        of what was expected of this one if that is more."""
        self._sizes[tenant] = max(size, self._sizes.get(tenant, FIRST_SIZE) // 2)

    def give_back(self, tenant: str) -> None:
        """Gives back a slot that take() took."""
        self._turns.end(tenant)
        if not self.num_held(tenant):
            self._sizes.pop(tenant, None)

    @asynccontextmanager
    async def receiving(self, caller: Caller) -> AsyncIterator[Callable[[int], None]]:
        """Holds a slot within the block, which gets a function that it tells the bytes that have arrived.
        Without authentication tenants are not told apart, and no call waits."""
        if caller.tenant is None:
            yield lambda size: None
            return
        await self.take(caller.tenant)
        try:
            yield partial(self.arrived, caller.tenant)
        finally:
            self.give_back(caller.tenant)

    def _share(self, tenant: str) -> int:
        """Returns how many slots the tenant may hold: never more than it leaves to others."""
        expected, left = self._sizes.get(tenant, FIRST_SIZE), self._turns.num_free
        assert left is not None
        return max(1, min(MAX_RECEIVED, left, MAX_RECEIVED_BYTES // max(expected, 1)))
