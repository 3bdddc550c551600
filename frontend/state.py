"""Whether this frontend serves, and a way to wait until that changes."""

import asyncio
import logging

from pagewire.v1 import admin_pb2

log = logging.getLogger(__name__)

STARTING = admin_pb2.SERVER_STATE_STARTING
SERVING = admin_pb2.SERVER_STATE_SERVING
DRAINING = admin_pb2.SERVER_STATE_DRAINING
FAILED = admin_pb2.SERVER_STATE_FAILED


class ServingState:
    """What health and GetServerInfo report. Written by the engine client, and once by the shutdown."""

    def __init__(self) -> None:
        self._engine = STARTING
        self._draining = False
        self._changed = asyncio.Event()

    @property
    def state(self) -> "admin_pb2.ServerState":
        """Now."""
        return DRAINING if self._draining else self._engine

    @property
    def serves(self) -> bool:
        """Whether new requests are welcome."""
        return self.state == SERVING

    def set_engine(self, state: "admin_pb2.ServerState") -> None:
        """STARTING, SERVING or FAILED."""
        if state != self._engine:
            self._engine = state
            log.info("engine: %s", admin_pb2.ServerState.Name(state).removeprefix("SERVER_STATE_").lower())
            self._notify()

    def drain(self) -> None:
        """From here on nothing new is taken; there is no way back."""
        self._draining = True
        self._notify()

    async def changed(self) -> None:
        """Waits for the next change. Look at the state and call this without an await between."""
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
