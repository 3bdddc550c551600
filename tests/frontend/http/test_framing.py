"""What two servers may read in different ways, sent to the HTTP port by a raw socket."""

import pytest

from tests.frontend.http.test_server import connect, run, until_closed

SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"

__all__ = ["run"]


@pytest.mark.parametrize(
    "lengths",
    [
        b"content-length: 4\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 4",
        b"content-length: 5\r\ncontent-length: 4",
        b"transfer-encoding: identity\r\ntransfer-encoding: chunked",
        b"transfer-encoding : chunked",
        b"transfer-encoding: xchunked",
        b"content-length: +5",
    ],
)
async def test_no_request_is_found_behind_an_ambiguous_one(run, lengths: bytes):
    async with run() as (service, _):
        reader, writer = await connect(service)
        writer.write(HEAD + lengths + b"\r\n\r\n0\r\n\r\n" + SMUGGLED)
        answer = await until_closed(reader)
        assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1
        writer.close()
