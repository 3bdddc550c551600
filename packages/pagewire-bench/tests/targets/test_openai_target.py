"""The OpenAI API as a target: our own frontend, and servers that count tokens only at the end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench_http_server import chunked, run_server, whole
from pagewire.errors import PagewireError
from pagewire_bench.prompts import BenchRequest
from pagewire_bench.targets.openai_target import Api, OpenAiTarget
from pagewire_bench.targets.target import OutputOptions, RequestFailed, ServedModel, TokenCounts
from tests.frontend.fakes import encode, run_service, say, write_checkpoint

MODELS = json.dumps({"data": [{"id": "m"}]}).encode()
EXACT, FREE = OutputOptions(0.0, ignore_eos=True), OutputOptions(0.0, ignore_eos=False)


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def text_event(text: str) -> bytes:
    return event(choices=[{"text": text}])


class Foreign:
    """A server that refuses what is not in OpenAI's own API, and reports usage in its last event."""

    def __init__(self, *events: bytes) -> None:
        self.events = events or (
            text_event("a"),
            text_event("b"),
            event(usage=USAGE, choices=[]),
            b"data: [DONE]\n\n",
        )
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, path: str, body: bytes) -> bytes:
        if path.endswith("/models"):
            return whole(MODELS)
        self.bodies.append(json.loads(body))
        if "continuous_usage_stats" in self.bodies[-1]["stream_options"]:
            return whole(b'{"error": {"message": "unknown", "code": "bad_field"}}', "400 Bad Request")
        return chunked(*self.events)


USAGE = {"prompt_tokens": 4, "completion_tokens": 6}


async def ask(
    answer: Callable[[str, bytes], bytes], prompt: Any = "hi", api: Api = "completions"
) -> tuple[ServedModel, list[int], TokenCounts]:
    counts: list[int] = []
    async with (
        run_server(answer) as server,
        OpenAiTarget(f"http://127.0.0.1:{server.port}/v1/", api, FREE, token="key") as target,
    ):
        model = await target.open()
        found = await target.send(BenchRequest(prompt, 9), counts.append)
        assert all("Authorization: Bearer key\r\n" in head for head in server.heads)
    return model, counts, found


async def test_our_own_api_counts_every_message(tmp_path_factory: pytest.TempPathFactory):
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    async with run_service(checkpoint, say(encode("he"), encode("llo")), openai_port=0) as service:
        for api in ("completions", "chat"):
            counts: list[int] = []
            async with OpenAiTarget(service.frontend.facts["openai"], api, FREE) as target:
                assert (await target.open()).name
                found = await target.send(BenchRequest("hi", 9), counts.append)
            assert sum(counts) == 5 and found.completion_tokens is None and found.prompt_tokens > 0


async def test_a_server_that_knows_only_totals():
    foreign = Foreign()
    model, counts, found = await ask(foreign)
    assert model == ServedModel("m", "")
    assert counts == [1, 1] and found == TokenCounts(4, 6)
    assert foreign.bodies[-1] == {
        "model": "m",
        "prompt": "hi",
        "max_tokens": 9,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_a_total_in_the_last_event_with_a_choice_is_no_count_of_that_event():
    """llama-server's completions end so: its messages and the total are not both tokens."""
    last = event(choices=[{"text": "", "finish_reason": "length"}], usage=USAGE)
    _, counts, found = await ask(Foreign(text_event("a"), text_event("b"), last))
    assert counts == [1, 1] and found == TokenCounts(4, 6)


@pytest.mark.parametrize("prompt", ["hi", [{"role": "user", "content": "hi"}]])
async def test_chat(prompt: Any):
    roles = event(choices=[{"delta": {"role": "assistant", "content": ""}}])
    texts = [event(choices=[{"delta": delta}]) for delta in ({"content": "a"}, {"reasoning_content": "b"})]
    foreign = Foreign(roles, *texts, event(choices=[{"delta": {}, "finish_reason": "stop"}]))
    _, counts, found = await ask(foreign, prompt, "chat")
    assert counts == [1, 1] and found == TokenCounts(0, None)
    assert foreign.bodies[-1]["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (
            whole(b'{"error": {"message": "slow down", "code": "rate_limit"}}', "429 Too Many"),
            "429 rate_limit: slow down",
        ),
        (whole(b"<html>", "502 Bad Gateway"), "502: b'<html>'"),
        (whole(b"[1]", "500 Error"), "500"),
        (chunked(event(error={"message": "the engine died"})), "error in the stream: the engine died"),
        (chunked(b"data: {\n\n"), "not JSON"),
        (chunked(b"data: 3\n\n"), "not an object"),
        (chunked(event(choices=3)), "not what it should be"),
        (b"nonsense\r\n", "not HTTP"),
        (b"", "connection"),
    ],
)
async def test_failures_have_names(answer: bytes, kind: str):
    async with (
        run_server(lambda path, body: answer) as server,
        OpenAiTarget(f"http://127.0.0.1:{server.port}", "completions", EXACT, model="m") as target,
    ):
        with pytest.raises(RequestFailed) as caught:
            await target.send(BenchRequest("hi", 1), lambda tokens: None)
    assert str(caught.value).startswith(kind)


@pytest.mark.parametrize("models", [b"{}", b"<html>", b'{"data": []}', b"3"])
async def test_a_service_without_a_list_of_models(models: bytes):
    async with (
        run_server(lambda path, body: whole(models)) as server,
        OpenAiTarget(f"http://127.0.0.1:{server.port}", "completions", EXACT) as target,
    ):
        with pytest.raises(PagewireError, match="--model-name"):
            await target.open()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://a", "http://", "http://a:b"])
def test_what_is_no_url(url: str):
    with pytest.raises(ValueError, match="."):
        OpenAiTarget(url, "chat", FREE)


def test_a_file_of_certificates_that_is_not_there(tmp_path: Path):
    with pytest.raises(OSError, match="No such file"):
        OpenAiTarget("https://a", "chat", FREE, tls_ca=str(tmp_path / "none"))
