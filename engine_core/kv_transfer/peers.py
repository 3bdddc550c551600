"""Connections of an engine core to others, at the sockets on which these listen for frontends."""

import logging

import zmq
from google.protobuf.message import DecodeError

from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import EngineMessage, FrontendMessage
from pagewire.ipc.curve import ClientKey
from pagewire.ipc.transport import BadFrame, connect_dealer, new_identity, pack, receive, unpack

log = logging.getLogger(__name__)

_MOST_MESSAGES = 1024
"""Taken at once."""


class PeerSockets:
    """One connection for each holder of blocks, while it is needed, for the thread of the step loop.
    Implements engine_core.kv_transfer.pulls.Peers."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", key: ClientKey | None = None) -> None:
        """key: for tcp."""
        self._context, self._key = context, key
        self._sockets: dict[str, zmq.Socket[bytes]] = {}  # by address

    def send(self, address: str, message: FrontendMessage) -> bool:
        try:
            if address not in self._sockets:
                socket = connect_dealer(self._context, address, new_identity(), self._key)
                self._sockets[address] = socket
            self._sockets[address].send(pack(message), zmq.NOBLOCK)
        except StartupError as error:
            log.warning("blocks of another engine core cannot be asked for: %s", error.why)
            return False
        except zmq.Again:
            return False
        return True

    def take(self) -> list[tuple[str, EngineMessage]]:
        taken = []
        for address, socket in list(self._sockets.items()):
            for _ in range(_MOST_MESSAGES):
                try:
                    message = EngineMessage.FromString(unpack(receive(socket)))
                except zmq.Again:
                    break
                except (BadFrame, DecodeError):
                    continue
                taken.append((address, message))
        return taken

    def close(self, address: str) -> None:
        """What was sent last has half a second to be sent."""
        socket = self._sockets.pop(address, None)
        if socket is not None:
            socket.close(linger=_LINGER_MS)

    def close_all(self) -> None:
        """Ends all connections."""
        for address in list(self._sockets):
            self.close(address)


_LINGER_MS = 500
