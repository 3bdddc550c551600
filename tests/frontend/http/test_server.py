"""The HTTP port and peers that are slow, hostile or elsewhere: raw sockets where clients are polite."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import trustme

from frontend.auth.tokens import digest_of
from frontend.http import endpoint, exchange, server
from tests.frontend.fakes import Output, Service, encode, run_service, say, until
from tests.patience import PATIENCE_S

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
JSON = {"content-type": "application/json"}
Run = Callable[..., Any]


@pytest.fixture
def run(checkpoint: Path) -> Run:
    """Runs a frontend with the HTTP port; yields its service and a client."""

    @asynccontextmanager
    async def start(script: Any = None, verify: Any = True, **flags: Any) -> AsyncIterator[Any]:
        script = script or say(encode("hello"))
        async with run_service(checkpoint, script, openai_port=0, **flags) as service:
            url = service.frontend.facts["openai"].removesuffix("/v1")
            async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S, verify=verify) as client:
                yield service, client

    return start


async def connect(service: Service) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection."""
    address = urlsplit(service.frontend.facts["openai"])
    return await asyncio.open_connection(address.hostname, address.port)


def head(length: int, path: str = "/v1/chat/completions") -> bytes:
    """The head of a request with a body of `length` bytes."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n"
    ).encode()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Everything that arrives before the connection ends, or is reset."""
    received = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while part := await reader.read(1 << 16):
                received += part
    except ConnectionError:
        pass
    return received


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "body: is not JSON"),
        (b"{", "body: is not JSON"),
        (b"[]", "body: must be a JSON object"),
        (b'{"messages": "\xff"}', "body: is not UTF-8"),
        (b'{"temperature": NaN}', "body: is not JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "body: has an integer of too many digits"),
        (b"[" * 100_000, "body: is nested too deeply"),
        (b'{"a":' * 100_000, "body: is nested too deeply"),
        (b"[" + b"0," * (1 << 20), "body: must have at most 1048576 values"),
    ],
    ids=["empty", "cut", "list", "utf8", "nan", "digits", "deep", "deep objects", "many"],
)
async def test_bodies_that_are_no_request(run: Run, content: bytes, message: str):
    async with run() as (_, client):
        answer = await client.post("/v1/chat/completions", content=content, headers=JSON)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["message"].startswith(message), error
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_a_body_has_a_size(run: Run):
    async with run(max_request_bytes=4096) as (_, client):
        long = {**CHAT, "user": "x" * 5000}
        answer = await client.post("/v1/chat/completions", json=long)
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 1000

        answer = await client.post("/v1/chat/completions", content=parts(), headers=JSON)
        assert answer.status_code == 413
        answer = await client.post(
            "/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"}
        )
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "content-type"


async def test_a_compressed_body_is_refused_by_its_header(run: Run):
    async with run() as (_, client):
        for encoding, field in (
            ("gzip", "content-encoding"),
            ("br", "content-encoding"),
            ("Identity", "body"),
        ):
            headers = {**JSON, "content-encoding": encoding}
            answer = await client.post("/v1/chat/completions", content=b"\x1f\x8b", headers=headers)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == field


async def test_a_byte_order_mark_is_no_part_of_the_body(run: Run):
    async with run() as (_, client):
        body = b"\xef\xbb\xbf" + json.dumps(CHAT).encode()
        answer = await client.post("/v1/chat/completions", content=body, headers=JSON)
        assert answer.status_code == 200


async def test_a_body_that_never_ends_is_cut_off(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "DISCARD_S", 0.1)
    async with run(max_request_bytes=4096) as (service, _):
        reader, writer = await connect(service)
        writer.write(head(1 << 40))
        flood = asyncio.create_task(_flood(writer))
        assert b" 413 " in await until_closed(reader)
        await flood
        await until(lambda: not service.frontend.limits.num_calls)


async def _flood(writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            await asyncio.sleep(0)
    except ConnectionError:
        writer.close()


async def test_a_slow_sender_is_cut_off(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint, "RECEIVE_TIMEOUT_S", 0.1)
    async with run() as (service, _):
        reader, writer = await connect(service)
        writer.write(head(100) + b"{")
        received = await until_closed(reader)
        assert b" 408 " in received and b"request_timeout" in received
        writer.close()
        await until(lambda: not service.frontend.limits.num_calls)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nhost: local"])
async def test_a_head_has_a_time_limit(run: Run, monkeypatch: pytest.MonkeyPatch, sent: bytes):
    monkeypatch.setattr(server, "HEAD_S", 0.1)
    async with run() as (service, client):
        reader, writer = await connect(service)
        writer.write(sent)
        assert await until_closed(reader) == b""
        writer.close()
        monkeypatch.undo()
        assert (await client.get("/health")).status_code == 200


async def test_connections_are_limited(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    async with run() as (service, _):
        held = [await connect(service) for _ in range(3)]
        reader, writer = await connect(service)
        assert await until_closed(reader) == b""
        writer.close()
        for _, each in held:
            each.close()
        await asyncio.sleep(0)


async def test_a_client_that_does_not_read_is_cut_off(run: Run):
    """Its request ends as one of a gRPC client would, and gives back its slot."""

    def script(request: Any) -> Any:
        for _ in range(200):
            yield Output(encode("x" * 50))

    engine = {"max_model_len": 1 << 20}
    async with run(script, write_timeout=0.3, engine_options=engine) as (service, _):
        wordy = {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 20}
        content = json.dumps({**wordy, "max_tokens": 10_000}).encode()
        reader, writer = await connect(service)
        writer.transport.pause_reading()
        writer.write(head(len(content)) + content)
        await until(lambda: service.frontend.counters.failures["SLOW_CONSUMER"] == 1)
        await until(lambda: not service.frontend.limits.num_calls)
        writer.transport.resume_reading()
        assert not (await until_closed(reader)).endswith(b"[DONE]\n\n")
        writer.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "known.example"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"host": "localhost:8000", "origin": "http://evil.example"}, 403),
        ({"host": "localhost:8000", "origin": "http://localhost:9000"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
    ],
)
async def test_pages_from_elsewhere_are_refused(run: Run, headers: dict[str, str], status: int):
    async with run(openai_allowed_host=("known.example",)) as (_, client):
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert answer.status_code == status
        assert not [name for name in answer.headers if name.startswith("access-control")]
        preflight = await client.options("/v1/chat/completions", headers=headers)
        assert preflight.status_code == 405


async def test_tokens_and_tenants(run: Run, tmp_path: Path):
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"tokens:\n  - {{sha256: {digest_of('alices').hex()}, tenant: alice}}\n")
    async with run(auth_file=str(tokens)) as (service, client):
        refused = await client.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
        assert refused.headers["www-authenticate"] == "Bearer"
        key = {"authorization": "Bearer alices", "host": "any.example"}
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=key)).status_code == 200
        assert service.engine.requests.get_nowait().tenant == "alice"
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/health")).status_code == 200


async def test_slots_are_those_of_grpc(run: Run):
    async with run(lambda request: [], max_concurrent_requests=1) as (service, client):
        waiting = asyncio.create_task(service.generate())
        await until(lambda: service.frontend.limits.num_calls == 1)
        full = await client.post("/v1/chat/completions", json=CHAT)
        assert full.status_code == 429 and int(full.headers["retry-after"]) >= 1
        assert full.json()["error"]["type"] == "rate_limit_error"
        waiting.cancel()


async def test_a_drain_refuses_requests(run: Run):
    async with run() as (service, client):
        service.frontend.state.drain()
        assert (await client.get("/health")).status_code == 503
        service.frontend.state.refuse()
        refused = await client.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"


async def test_a_shutdown_ends_streams_with_an_error(run: Run):
    async with run(lambda request: [Output(encode("he"))]) as (service, client):
        content = json.dumps({**CHAT, "stream": True}).encode()
        reader, writer = await connect(service)
        writer.write(head(len(content)) + content)
        await reader.readuntil(b'"he"')
        await service.frontend.stop(0.1)
        assert b'"draining"' in await until_closed(reader)
        writer.close()
        with pytest.raises(httpx2.ConnectError):
            await client.get("/health")


async def test_tls_and_a_new_certificate(run: Run, tmp_path: Path):
    authority = trustme.CA()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def issue() -> None:
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(key))
        issued.cert_chain_pems[0].write_to_path(str(cert))

    issue()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with run(tls_cert=str(cert), tls_key=str(key), verify=context) as (service, client):
        assert (await client.get("/health")).status_code == 200
        before = await _serial(service, context)
        issue()
        await soon_async(lambda: _serial(service, context), lambda serial: serial != before)


async def _serial(service: Service, context: ssl.SSLContext) -> str:
    address = urlsplit(service.frontend.facts["openai"])
    assert address.scheme == "https"
    _, writer = await asyncio.open_connection(address.hostname, address.port, ssl=context)
    found: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return found


async def soon_async(look: Callable[[], Awaitable[Any]], holds: Callable[[Any], bool]) -> None:
    """Waits until what is seen is right."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds(await look()):
            await asyncio.sleep(0.1)


async def test_a_bug_is_a_500_without_details(run: Run, monkeypatch: pytest.MonkeyPatch):
    async with run() as (service, client):

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError("secret")

        monkeypatch.setattr("pagewire_openai.endpoints.read_chat", fail)
        answer = await client.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 500 and "secret" not in answer.text
        assert answer.json()["error"]["type"] == "server_error"


async def test_paths_that_do_not_exist(run: Run):
    async with run() as (_, client):
        missing = await client.post("/v1/images/generations", json={})
        assert missing.status_code == 404 and missing.json()["error"]["code"] == "not_found"
        assert (await client.get("/v1/chat/completions")).status_code == 405
