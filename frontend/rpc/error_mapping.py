"""Turns errors into gRPC statuses: the one place where a call ends with an error."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from grpc_status import rpc_status

from frontend.errors import InternalError, ServiceError, Unimplemented, to_status
from frontend.rpc.call_context import Context
from frontend.rpc.handlers import Handler
from pagewire.logs import traceback_of

log = logging.getLogger(__name__)

RETRY_PUSHBACK = "grpc-retry-pushback-ms"
"""Trailer that tells a gRPC client with a retry policy when to try again."""

Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Response = TypeVar("Response")


def to_grpc(error: ServiceError) -> Any:
    """Returns the grpc.Status of an error, for `context.abort_with_status`. An error that may be retried
    carries the delay in the trailer that gRPC's own retries obey, too."""
    status = rpc_status.to_status(to_status(error))
    if error.retry_after is None:
        return status
    pushback = (RETRY_PUSHBACK, str(round(error.retry_after * 1000)))
    return status._replace(trailing_metadata=(*status.trailing_metadata, pushback))


def without_frames(error: grpc.aio.AbortError) -> grpc.aio.AbortError:
    """Returns the error without its traceback and its cause, to be raised again.

    gRPC keeps the error in the call's state, which the frames of its traceback refer to. In such a circle the
    request, which may be large, would stay in memory until the garbage collector runs.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def guarded(
    method: Callable[[Servicer, Request, Context], Awaitable[Response]],
) -> Callable[[Servicer, Request, Context], Awaitable[Response]]:
    """Makes an RPC of a method that raises ServiceError. For unary and, with context.write(), for
    streaming ones."""

    @functools.wraps(method)
    async def rpc(servicer: Servicer, request: Request, context: Context) -> Response:
        try:
            return await method(servicer, request, context)
        except ServiceError as error:
            await context.abort_with_status(to_grpc(error))
        except asyncio.CancelledError:
            raise  # the client is gone; returning normally would leak memory in grpc
        except grpc.aio.AbortError:
            raise  # the call has been aborted already
        except grpc.aio.BaseError:
            # The client left while a message was being sent. gRPC would log a traceback for each of these.
            raise asyncio.CancelledError from None
        except Exception as error:
            log.error("%s failed: %s", method.__qualname__, traceback_of(error))
            await context.abort_with_status(to_grpc(InternalError()))
        raise AssertionError("abort_with_status() raises")

    return rpc


def unimplemented(rpc: str) -> Callable[[Any, Any, Context], Awaitable[Any]]:
    """Returns an RPC that is part of the contract, but not implemented yet."""

    @guarded
    async def refuse(servicer: Any, request: Any, context: Context) -> None:
        raise Unimplemented(rpc)

    return refuse


def refusing_handler(error: ServiceError) -> Handler:
    """Returns a handler that ends a call of any kind with an error, without reading its request."""

    async def refuse(_: object, context: Context) -> None:
        await context.abort_with_status(to_grpc(error))

    return grpc.stream_stream_rpc_method_handler(refuse)
