"""Log lines of libraries that quote what peers have sent."""

import asyncio
import logging
import traceback
from typing import Any

log = logging.getLogger(__name__)


class Discreet(logging.Filter):
    """Takes bytes out of what gRPC says: those of a header that it could not read, which may be a token."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("grpc") and isinstance(record.args, tuple):
            record.args = tuple(
                f"<{len(each)} bytes>" if isinstance(each, bytes) else each for each in record.args
            )
        return True


def places_of(error: BaseException) -> str:
    """Where an exception was raised, and of what kind it is; not its text, which may quote a request."""
    frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return f"{type(error).__qualname__}\n{frames}" if frames else type(error).__qualname__


def tell_of_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An event loop's exception handler. (The usual one shows the exception as Python code.)"""
    error = context.get("exception")
    place = places_of(error) if isinstance(error, BaseException) else "no exception"
    log.error("%s: %s", context.get("message", "the event loop met an error"), place)
