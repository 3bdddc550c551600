"""Bodies in every form, connections that are kept and lost, and bytes that are not HTTP."""

import pytest

from bench_http_server import CLOSE, chunked, run_server, whole
from pagewire_bench.targets.http_client import BadHttp, HttpClient


def client(port: int) -> HttpClient:
    return HttpClient("127.0.0.1", port, None, {"X": "y"})


async def body_of(http: HttpClient, path: str = "/") -> bytes:
    async with http.request("POST", path, b"{}") as answer:
        return await answer.body()


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"hello"),
        chunked(b"he", b"llo"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello" + CLOSE,
    ],
)
async def test_bodies(answer: bytes):
    async with run_server(lambda path, body: answer) as server:
        http = client(server.port)
        assert [await body_of(http) for _ in range(2)] == [b"hello", b"hello"]
        assert server.connections == (2 if answer.endswith(CLOSE) else 1)
        assert "\r\nX: y\r\n" in server.heads[0] and server.bodies == [b"{}", b"{}"]
        await http.close()


async def test_events_over_the_borders_of_chunks():
    parts = (b"data: a\n\nda", b"ta:b\n", b": comment\nevent: x\n\ndata: c\r\n\r\n")
    async with run_server(lambda path, body: chunked(*parts)) as server:
        http = client(server.port)
        async with http.request("GET", "/") as answer:
            assert [event async for event in answer.events()] == [b"a", b"b", b"c"]
        await http.close()


async def test_a_kept_connection_that_was_closed_is_replaced():
    async with run_server(lambda path, body: whole(b"x") + CLOSE) as server:
        http = client(server.port)
        assert [await body_of(http) for _ in range(3)] == [b"x"] * 3
        assert server.connections == 3
        await http.close()


async def test_an_answer_that_is_left_early_closes_its_connection():
    async with run_server(lambda path, body: chunked(b"data: a\n", b"data: b\n")) as server:
        http = client(server.port)
        async with http.request("GET", "/") as answer:
            async for _ in answer.events():
                break
        await body_of(http)
        assert server.connections == 2
        await http.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"A%d: b\r\n" % each for each in range(300)) + b"\r\n",
    ],
)
async def test_what_is_no_http_is_refused(answer: bytes):
    async with run_server(lambda path, body: answer) as server:
        http = client(server.port)
        with pytest.raises(BadHttp):
            await body_of(http)
        await http.close()


@pytest.mark.parametrize("answer", [b"", chunked(b"a")[:-5] + CLOSE, whole(b"abc")[:-1] + CLOSE])
async def test_a_connection_that_ends_early_is_an_error(answer: bytes):
    async with run_server(lambda path, body: answer) as server:
        http = client(server.port)
        with pytest.raises(ConnectionError):
            await body_of(http)
        await http.close()
