"""gRPC's handlers of methods, as far as interceptors change them."""

from collections.abc import Callable
from typing import Any

Handler = Any
"""A grpc.RpcMethodHandler, which in truth is a named tuple: its type does not say so."""
Behavior = Callable[..., Any]
"""What a method does: takes a request, or an iterator of them, and a context."""

_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
"""A handler has a behavior in one of these places."""


def kind_of(handler: Handler) -> str:
    """Which of them."""
    return next(kind for kind in _KINDS if getattr(handler, kind) is not None)


def wrapped(handler: Handler, wrap: Callable[[Behavior], Behavior]) -> Handler:
    """The same handler with another behavior."""
    kind = kind_of(handler)
    return handler._replace(**{kind: wrap(getattr(handler, kind))})
