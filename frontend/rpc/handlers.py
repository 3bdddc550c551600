"""Helpers for interceptors that wrap gRPC method handlers."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

Handler = Any
"""A grpc.RpcMethodHandler, which is really a named tuple, although its type does not say so."""
Behavior = Callable[..., Any]
"""A method's implementation: takes a request, or an iterator of requests, and a context."""

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]
"""Finds the handler of a call."""

_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
"""Fields of a handler, one of which holds the behavior."""


def kind_of(handler: Handler) -> str:
    """Returns the field that holds the handler's behavior."""
    return next(kind for kind in _KINDS if getattr(handler, kind) is not None)


def wrapped(handler: Handler, wrap: Callable[[Behavior], Behavior]) -> Handler:
    """Returns the handler with its behavior replaced by wrap(behavior)."""
    kind = kind_of(handler)
    return handler._replace(**{kind: wrap(getattr(handler, kind))})
