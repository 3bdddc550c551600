"""What the step loop finds in its input queue."""

from dataclasses import dataclass

from pagewire.internal.v1.engine_pb2 import FrontendMessage


@dataclass(frozen=True, slots=True)
class Received:
    """A message came in."""

    frontend: bytes  # identity of the socket it came from
    message: FrontendMessage
    at: float  # on the core's clock


@dataclass(frozen=True, slots=True)
class FrontendGone:
    """A frontend cannot be reached any more, or has stopped reading."""

    frontend: bytes


@dataclass(frozen=True, slots=True)
class SocketsFailed:
    """The thread that serves the frontends' socket has ended by a bug of ours."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Stop:
    """A signal asks this process to end."""


Event = Received | FrontendGone | SocketsFailed | Stop
