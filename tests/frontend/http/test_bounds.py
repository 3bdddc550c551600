"""Bounds of the HTTP port that hold while others are served: depth, heads, bodies and idle connections."""

import json
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from frontend.http import exchange, server
from pagewire_openai.requests.chat import MAX_KWARGS_NESTING
from pagewire_openai.requests.values import MAX_DEPTH
from tests.frontend.http.test_server import CHAT, JSON, Run, connect, head, run, until_closed

__all__ = ["run"]
IDLE = 1000
"""Connections that say nothing."""


def nested(depth: int) -> dict[str, Any]:
    """An object that many levels deep."""
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


async def test_no_depth_is_an_error_of_the_server(run: Run):
    """What the parser still reads may be too deep for what comes after it."""
    text = json.dumps({**CHAT, "chat_template_kwargs": 0, "max_tokens": 4})
    async with run() as (_, client):
        statuses = set()
        for depth in [MAX_KWARGS_NESTING, MAX_KWARGS_NESTING + 2, MAX_DEPTH, 200, *range(840, 1000, 10)]:
            deep = '{"a":' * depth + "1" + "}" * depth
            content = text.replace('"chat_template_kwargs": 0', f'"chat_template_kwargs": {deep}')
            answer = await client.post("/v1/chat/completions", content=content, headers=JSON)
            statuses.add((depth <= MAX_KWARGS_NESTING, answer.status_code))
        assert statuses == {(True, 200), (False, 400)}
        for field in ("metadata", "user", "text", "input", "tools", "reasoning", "include"):
            content = json.dumps({"model": "fake", "input": "x", field: 0}).replace(
                f'"{field}": 0', f'"{field}": {json.dumps(nested(900))}'
            )
            answer = await client.post("/v1/responses", content=content, headers=JSON)
            assert answer.status_code == 400, (field, answer.text)


async def test_a_head_has_a_size(run: Run):
    async with run() as (service, client):
        reader, writer = await connect(service)
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-much: " + b"x" * 200_000)
        assert b" 400 " in await until_closed(reader)
        writer.close()
        assert (await client.get("/health")).status_code == 200


async def test_a_large_body_is_refused_by_its_length_or_as_it_comes(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    """Declared, or in chunks without saying so."""
    async with run() as (service, client):
        monkeypatch.setattr(exchange, "DISCARD_S", 0.1)
        reader, writer = await connect(service)
        writer.write(head(100 << 20))
        assert b" 413 " in await until_closed(reader)
        writer.close()
        monkeypatch.setattr(exchange, "DISCARD_S", 60)
        reader, writer = await connect(service)
        writer.write(head(0).replace(b"content-length: 0", b"transfer-encoding: chunked"))
        for _ in range(20):
            writer.write(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        assert b" 413 " in await reader.readuntil(b"\r\n")
        writer.close()
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough for both ends of IDLE connections: many machines allow 1024 where nothing asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 3 * IDLE)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_idle_connections_hold_up_nothing_and_end(
    run: Run, monkeypatch: pytest.MonkeyPatch, descriptors: None
):
    monkeypatch.setattr(server, "_KEEP_ALIVE_S", 1)
    async with run() as (service, client):
        idle = [await connect(service) for _ in range(IDLE)]
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        reader, writer = await connect(service)
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b'{"status":"SERVING"}' in await until_closed(reader), (
            "and the connection ends after its answer"
        )
        writer.close()
        for _, each in idle:
            each.close()
