"""Where the tensor-parallel ranks of several hosts meet: at a port of rank 0's host, which rank 0 listens on
before it greets the engine core, so that the core can tell the others. Needs no torch."""

import socket
from collections.abc import Callable

from pagewire.errors import StartupError

_BACKLOG = 128


class Meeting:
    """The meeting point, as one rank sees it."""

    def __init__(self, rank: int, address: str, is_core_lost: Callable[[], bool]) -> None:
        """address: of rank 0's host, a name or an IPv4 address. is_core_lost: whether the connection of this
        rank to its engine core has ended. Raises StartupError."""
        self.address, self.is_core_lost = address, is_core_lost
        self.host = socket.gethostname()
        """Name of this host."""
        self.abandoned: object = None
        """Connections on which an exchange waits that may never end, as would the destructor; None: none
        does."""
        try:
            self._listening = _listen(address) if rank == 0 else None
        except OSError as error:
            what, why = f"cannot listen on {address}", error.strerror or str(error)
            raise StartupError(what, why, "--master-addr is an address of the first host") from error
        self.port = self._listening.getsockname()[1] if self._listening is not None else 0
        """Where rank 0 listens; 0: this is another rank."""

    def own_address(self) -> str:
        """Returns the address of this host, as that of rank 0 reaches it. Raises OSError."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.address, 1))  # sends nothing
            return str(probe.getsockname()[0])

    def take_socket(self) -> int:
        """Returns the descriptor on which rank 0 listens. It belongs to the caller then."""
        assert self._listening is not None
        return self._listening.detach()


def _listen(address: str) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.bind((address, 0))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
