"""Log lines of a frontend name the request that they belong to."""

import io
import json
import logging

import grpc
import pytest

from frontend.auth.tokens import digest_of, entry_line
from pagewire import logs
from tests.frontend.auth.test_authenticator import bearer
from tests.frontend.fakes import make_request, run_service, say

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
METADATA = (*bearer("alice's"), ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01"))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch):
    stream, root = io.StringIO(), logging.getLogger()
    monkeypatch.setattr("sys.stderr", stream)
    handlers, level = root.handlers[:], root.level
    logs.setup("frontend", "error", "json")
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens.yaml"
    path.write_text("tokens:\n" + entry_line(digest_of("alice's"), "alice", {}))
    return {"auth_file": str(path)}


def fields(line: dict[str, str]) -> tuple[str | None, ...]:
    return line.get("request_id"), line.get("tenant"), line.get("trace_id")


async def test_a_bug_in_a_request_names_it(checkpoint, model, tokens, lines, monkeypatch):
    """In the call's own task."""

    def broken(*_: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr("frontend.streams.request_spec._header", broken)
    async with run_service(checkpoint, model=model, **tokens) as service:
        with pytest.raises(grpc.aio.AioRpcError):
            await service.generation.GenerateUnary(make_request(request_id="r1"), metadata=METADATA)
    (line,) = lines()
    assert "GenerateUnary failed" in line["message"] and fields(line) == ("r1", "alice", TRACE)


async def test_output_that_cannot_be_processed_names_its_request(
    checkpoint, model, tokens, lines, monkeypatch
):
    """In the task that reads from the core, which belongs to no request."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr("frontend.streams.stream.Stream.push", broken)
    async with run_service(checkpoint, say([65]), model=model, **tokens) as service:
        with pytest.raises(grpc.aio.AioRpcError):
            await service.generation.GenerateUnary(make_request(request_id="r2"), metadata=METADATA)
    assert {fields(line) for line in lines()} == {("r2", "alice", TRACE)}
