"""How every RPC ends when it does not end well: the one place where errors become statuses."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from frontend.errors import InternalError, ServiceError, to_grpc
from pagewire.log_redaction import places_of

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Response = TypeVar("Response")


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
            raise  # somebody below has ended the call
        except grpc.aio.BaseError:
            # It went while a message was on its way. gRPC would log a traceback for each that does so.
            raise asyncio.CancelledError from None
        except Exception as error:
            log.error("%s failed: %s", method.__qualname__, places_of(error))
            await context.abort_with_status(to_grpc(InternalError()))
        raise AssertionError("abort_with_status() raises")

    return rpc
