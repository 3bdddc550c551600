"""Log records that could quote a request or a header, and records that clients can cause."""

import asyncio
import logging

import pytest

from pagewire.logs import LINES_PER_MINUTE, LibraryLogFilter, log_loop_error, traceback_of

SECRET = "text of a client"


@pytest.mark.parametrize(
    ("name", "shown"), [("grpc._cython.cygrpc", False), ("engine_core.io.frontend_sockets", True)]
)
def test_bytes_are_redacted_in_records_of_grpc(name, shown):
    arguments = (SECRET.encode(), 5)
    record = logging.LogRecord(name, logging.ERROR, "", 1, "Invalid encoding on %s (%d)", arguments, None)
    assert LibraryLogFilter().filter(record)
    assert (SECRET in record.getMessage()) == shown
    assert shown or record.getMessage() == f"Invalid encoding on <{len(SECRET)} bytes> (5)"


def test_other_records_pass_unchanged():
    for arguments in (None, (), ("text",), ({"x": 1},)):
        record = logging.LogRecord("grpc", logging.ERROR, "", 1, "all is well", arguments, None)
        assert LibraryLogFilter().filter(record) and record.msg == "all is well"


def test_a_traceback_has_no_text_of_the_exception():
    try:
        int(SECRET)
    except ValueError as error:
        text = traceback_of(error)
    assert text.startswith("ValueError") and "test_redaction" in text
    assert f"'{SECRET}'" not in text
    assert traceback_of(KeyError(SECRET)) == "KeyError"


async def test_a_loop_error_is_logged_without_its_text(caplog):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_error)
    loop.call_exception_handler({"message": "a task failed", "exception": ValueError(SECRET)})
    loop.call_exception_handler({})
    assert "a task failed: ValueError" in caplog.text and SECRET not in caplog.text
    assert len(caplog.messages) == 2


def test_records_of_grpc_are_throttled():
    """Found by Health.Check calls that hang up: 8 lines of traceback for each, from anyone who can
    connect."""
    now = 100.0
    throttle = LibraryLogFilter(lambda: now)

    def record(name: str = "grpc._cython.cygrpc") -> logging.LogRecord:
        return logging.LogRecord(name, logging.ERROR, "", 1, "no %s", ("answer",), None)

    assert sum(throttle.filter(record()) for _ in range(500)) == LINES_PER_MINUTE
    assert sum(throttle.filter(record("uvicorn.error")) for _ in range(500)) == LINES_PER_MINUTE, "its own"
    assert throttle.filter(record("frontend.server"))
    now = 161.0
    first, second = record(), record()
    assert throttle.filter(first) and throttle.filter(second)
    dropped = 500 - LINES_PER_MINUTE
    assert first.getMessage() == f"no answer ({dropped} records of gRPC were dropped before this one)"
    assert second.getMessage() == "no answer"


def test_lines_of_a_traceback_count():
    try:
        int(SECRET)
    except ValueError as error:
        info = type(error), error, error.__traceback__
    throttle = LibraryLogFilter(lambda: 100.0)
    records = [logging.LogRecord("grpc", logging.ERROR, "", 1, "failed", (), info) for _ in range(100)]
    passed = [record for record in records if throttle.filter(record)]
    lines = len(passed) * len((logging.Formatter().format(records[0])).splitlines())
    assert LINES_PER_MINUTE <= lines < LINES_PER_MINUTE + 5
    several = logging.LogRecord("uvicorn", logging.ERROR, "", 1, "a\n" * LINES_PER_MINUTE, (), None)
    assert throttle.filter(several) and not throttle.filter(several)
