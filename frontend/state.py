"""Whether this frontend serves, and a way to wait until that changes."""

import asyncio
import logging

from frontend.errors import Draining
from pagewire.v1 import admin_pb2

log = logging.getLogger(__name__)

STARTING = admin_pb2.SERVER_STATE_STARTING
SERVING = admin_pb2.SERVER_STATE_SERVING
DRAINING = admin_pb2.SERVER_STATE_DRAINING
FAILED = admin_pb2.SERVER_STATE_FAILED


class ServingState:
    """What health and GetServerInfo report. Written by the engine client and by frontend/rpc/drain.py."""

    def __init__(self) -> None:
        self._engine = STARTING
        self._drains = False  # health says NOT_SERVING, requests are taken all the same
        self._refuses = False  # they are not
        self._closes = False  # the server is about to end: no way back from here
        self._changed = asyncio.Event()

    @property
    def state(self) -> "admin_pb2.ServerState":
        """Now."""
        return DRAINING if self._drains else self._engine

    @property
    def serves(self) -> bool:
        """What health says: whether balancers shall send requests here."""
        return self.state == SERVING

    @property
    def engine(self) -> "admin_pb2.ServerState":
        """STARTING, SERVING or FAILED."""
        return self._engine

    @property
    def closes(self) -> bool:
        """Whether calls that have no end of their own should end now."""
        return self._closes

    @property
    def leaves(self) -> bool:
        """Whether clients that stay connected should look for another server."""
        return self._refuses or self._closes

    def require_open(self) -> None:
        """Raises Draining when new requests are refused."""
        if self._refuses:
            raise Draining

    def set_engine(self, state: "admin_pb2.ServerState") -> None:
        """STARTING, SERVING or FAILED."""
        if state != self._engine:
            self._engine = state
            log.info("engine: %s", admin_pb2.ServerState.Name(state).removeprefix("SERVER_STATE_").lower())
            self._notify()

    def drain(self) -> None:
        """Balancers shall look elsewhere; who still comes is served."""
        self._drains = True
        self._notify()

    def refuse(self) -> None:
        """From here on nothing new is taken."""
        self._refuses = True
        self._notify()

    def resume(self) -> None:
        """The other way round."""
        self._drains = self._refuses = False
        self._notify()

    def close(self) -> None:
        """Whoever waits for changes hears of the last one."""
        self._drains = self._closes = True
        self._notify()

    async def changed(self) -> None:
        """Waits for the next change. Look at the state and call this without an await between."""
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
