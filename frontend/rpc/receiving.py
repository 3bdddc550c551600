"""Bounds how many request messages are on their way to a frontend, and for how long.

gRPC keeps what has arrived of each message that is being received, up to --max-request-bytes of each. It
begins to receive when the interceptors have returned a method, so a call waits there until it may.
"""

import asyncio
from typing import Any

from frontend.auth.caller import Caller
from frontend.call.messages import NO_TENANT, ReceivingSlots
from frontend.rpc.call_context import Context, on_decoded
from frontend.rpc.handlers import Behavior
from frontend.telemetry.counters import Counters


class Receiving:
    """A call whose request has not been received yet, or is large and has not been decoded yet."""

    def __init__(self, task: asyncio.Task[Any], counters: Counters, slots: ReceivingSlots) -> None:
        self._task = task
        self._counters = counters
        self._slots = slots
        self._tenant: str | None = None  # which one's slot is held
        self._timer: asyncio.TimerHandle | None = None
        self._has_arrived = False

    async def begin(self, caller: Caller | None, seconds: float) -> None:
        """Returns when the request may be received. The call ends if it has not been after so many seconds.

        Without authentication tenants are not told apart, and no call waits.
        """
        self._timer = asyncio.get_running_loop().call_later(seconds, self._task.cancel)
        if (tenant := caller.tenant if caller is not None else NO_TENANT) is not None:
            await self._slots.take(tenant)
            self._tenant = tenant

    def wrap(self, behavior: Behavior) -> Behavior:
        """Returns the behavior, which is called when the request has been received. While the request is the
        bytes of a large message, its slot is held until they are decoded."""

        async def call(request: object, context: Context) -> Any:
            self._arrived(request)
            return await behavior(request, context)

        return call

    def end(self) -> None:
        """Counts a call that ended before its request was received."""
        if not self._has_arrived:
            self._counters.abandoned += 1
            self._stop_timer()
        self._give_back()

    def _arrived(self, request: object) -> None:
        self._has_arrived = True
        self._stop_timer()
        size = len(request) if isinstance(request, bytes) else 0
        if self._tenant is not None:
            self._slots.arrived(self._tenant, size)
        if size:
            on_decoded(self._give_back)
        else:
            self._give_back()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_back(self) -> None:
        if self._tenant is not None:
            self._slots.give_back(self._tenant)
            self._tenant = None
