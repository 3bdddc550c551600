"""The request that log lines belong to: its id, its tenant, its trace.

The fields live in a context variable, so a line that is logged anywhere in a request's task has them. Code
that handles many requests in one task names the request of a line with about().
"""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

NAMES = ("request_id", "tenant", "trace_id")
"""Fields of a line, in this order."""
_NONE: Mapping[str, str] = {}
_current: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=_NONE)
_PLAIN = re.compile(r"[A-Za-z0-9._#/:@-]+")


def put(*, request_id: str | None = None, tenant: str | None = None, trace_id: str | None = None) -> None:
    """Adds fields to the lines of the current task from here on. None: as it was. "": none."""
    given = {"request_id": request_id, "tenant": tenant, "trace_id": trace_id}
    _current.set({**_current.get(), **{name: value for name, value in given.items() if value is not None}})


@contextmanager
def about(*, request_id: str, tenant: str = "", trace_id: str = "") -> Iterator[None]:
    """Gives the lines within the block these fields and no others. request_id: the client's, or an engine's,
    which begins with the tenant."""
    own = request_id.removeprefix(f"{tenant}/") if tenant else request_id
    token = _current.set({"request_id": own, "tenant": tenant, "trace_id": trace_id})
    try:
        yield
    finally:
        _current.reset(token)


class RequestFieldsFilter(logging.Filter):
    """Writes the fields into each record; those of its own `extra` stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Drops nothing."""
        for name, value in _current.get().items():
            if value and not hasattr(record, name):
                setattr(record, name, value)
        return True


def quoted(value: str) -> str:
    """Returns the value of a field as a line of text shows it: quoted where it could be taken for more."""
    return value if _PLAIN.fullmatch(value) else ascii(value)


def in_text(record: logging.LogRecord) -> str:
    """Returns a record's fields for a line of text, such as "[request_id=x tenant=a] "; "": it has none.

    Clients choose request ids: one that could be taken for another field is quoted.
    """
    found = [(name, str(getattr(record, name))) for name in NAMES if getattr(record, name, None)]
    if not found:
        return ""
    shown = (f"{name}={quoted(value)}" for name, value in found)
    return f"[{' '.join(shown)}] "
