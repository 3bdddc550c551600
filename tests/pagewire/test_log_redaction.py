"""Lines that could quote what somebody has sent."""

import asyncio
import logging

import pytest

from pagewire.log_redaction import Discreet, places_of, tell_of_loop_error

SECRET = "what somebody has sent"


@pytest.mark.parametrize(
    ("name", "shown"), [("grpc._cython.cygrpc", False), ("engine_core.io.frontend_sockets", True)]
)
def test_bytes_are_taken_out_of_what_grpc_says(name, shown):
    arguments = (SECRET.encode(), 5)
    record = logging.LogRecord(name, logging.ERROR, "", 1, "Invalid encoding on %s (%d)", arguments, None)
    assert Discreet().filter(record)
    assert (SECRET in record.getMessage()) == shown
    assert shown or record.getMessage() == f"Invalid encoding on <{len(SECRET)} bytes> (5)"


def test_other_lines_stay_as_they_are():
    for arguments in (None, (), ("text",), ({"x": 1},)):
        record = logging.LogRecord("grpc", logging.ERROR, "", 1, "all is well", arguments, None)
        assert Discreet().filter(record) and record.msg == "all is well"


def test_an_exception_is_told_without_its_text():
    try:
        int(SECRET)
    except ValueError as error:
        told = places_of(error)
    assert told.startswith("ValueError") and "test_discretion" in told
    assert f"'{SECRET}'" not in told
    assert places_of(KeyError(SECRET)) == "KeyError"


async def test_what_happens_beside_a_request_is_told_without_it(caplog):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(tell_of_loop_error)
    loop.call_exception_handler({"message": "a task failed", "exception": ValueError(SECRET)})
    loop.call_exception_handler({})
    assert "a task failed: ValueError" in caplog.text and SECRET not in caplog.text
    assert len(caplog.messages) == 2
