"""Any service with the OpenAI API: chat or completions, streamed as server-sent events."""

import asyncio
import json
import ssl
from collections.abc import Mapping
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pagewire.errors import PagewireError
from pagewire_bench.prompts import BenchRequest
from pagewire_bench.targets.http_client import BadHttp, HttpAnswer, HttpClient
from pagewire_bench.targets.target import OnTokens, OutputOptions, RequestFailed, ServedModel, TokenCounts

Api = Literal["completions", "chat"]
_OK = 200
_BAD_REQUEST = 400
_PROBE = BenchRequest("Hello", 1)


class OpenAiTarget:
    """Sends requests over HTTP/1.1, each on a connection of its own, which is kept for later ones.

    Where the server counts tokens in each message (`continuous_usage_stats`, as vLLM and pagewire do),
    inter-token latencies are of tokens. Elsewhere each message counts as one token, and the total of the
    usage is divided evenly among the messages.
    """

    def __init__(
        self,
        url: str,
        api: Api,
        options: OutputOptions,
        *,
        model: str = "",
        token: str = "",
        tls_ca: str = "",
        request_timeout: float = 600.0,
    ) -> None:
        """url: such as http://127.0.0.1:8000/v1. model: default: the first that the service lists. tls_ca:
        PEM file; default: the system's authorities. Raises ValueError for a URL that is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a URL such as http://127.0.0.1:8000/v1")
        tls = ssl.create_default_context(cafile=tls_ca or None) if parts.scheme == "https" else None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = HttpClient(parts.hostname, parts.port or (443 if tls else 80), tls, headers)
        self._base = parts.path.rstrip("/")
        self._api, self._options, self._model = api, options, model
        self._timeout = request_timeout
        self._counts_each_message = True

    async def open(self) -> ServedModel:
        """Returns the served model, and finds out whether the service counts tokens in each message. Raises
        PagewireError."""
        try:
            async with asyncio.timeout(self._timeout):
                server = await self._find_model()
                await self._probe()
        except (RequestFailed, TimeoutError) as error:
            raise PagewireError(f"the service at --url does not answer as expected: {error}") from None
        return ServedModel(self._model, server)

    async def send(self, request: BenchRequest, on_tokens: OnTokens) -> TokenCounts:
        """Streams one answer. Raises RequestFailed, by HTTP status and OpenAI's code."""
        path = self._base + ("/chat/completions" if self._api == "chat" else "/completions")
        body = json.dumps(self._body(request)).encode()
        try:
            async with self._http.request("POST", path, body) as answer:
                if answer.status != _OK:
                    raise _refusal(answer.status, await answer.body())
                return await self._read(answer, on_tokens)
        except (OSError, BadHttp) as error:
            raise _broken(error) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def _find_model(self) -> str:
        """Returns the name of the server program."""
        try:
            async with self._http.request("GET", f"{self._base}/models") as answer:
                body = await answer.body()
                server = answer.headers.get("server", "")
        except (OSError, BadHttp) as error:
            raise _broken(error) from error
        if not self._model:
            if answer.status != _OK:
                raise _refusal(answer.status, body)
            try:
                self._model = str(json.loads(body)["data"][0]["id"])
            except (ValueError, LookupError, TypeError):
                raise RequestFailed("no list of models", "name the model with --model-name") from None
        return server

    async def _probe(self) -> None:
        try:
            await self.send(_PROBE, lambda tokens: None)
        except RequestFailed as error:
            if not error.kind.startswith(str(_BAD_REQUEST)):
                raise
            self._counts_each_message = False
            await self.send(_PROBE, lambda tokens: None)

    def _body(self, request: BenchRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.max_tokens,
            "temperature": self._options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._counts_each_message:
            body["stream_options"]["continuous_usage_stats"] = True
        if self._options.ignore_eos:
            body["ignore_eos"] = True
        if self._api == "chat":
            is_text = isinstance(request.prompt, str)
            body["messages"] = [{"role": "user", "content": request.prompt}] if is_text else request.prompt
        else:
            body["prompt"] = request.prompt
        return body

    async def _read(self, answer: HttpAnswer, on_tokens: OnTokens) -> TokenCounts:
        counter = _UsageCounter()
        async for data in answer.events():
            if data == b"[DONE]":
                continue
            try:
                new = counter.count(_event(data))
            except (TypeError, ValueError, AttributeError):
                raise RequestFailed("not what it should be", repr(data[:80])) from None
            if new > 0:
                on_tokens(new)
        return TokenCounts(
            counter.prompt_tokens, None if counter.is_exact else counter.completion_tokens or None
        )


class _UsageCounter:
    """Counts the tokens of one answer. is_exact: its events say how many, as the first with a choice does.
    (Of llama-server's only the last one does.)"""

    def __init__(self) -> None:
        self.prompt_tokens = self.completion_tokens = 0
        self.is_exact: bool | None = None

    def count(self, event: Mapping[str, Any]) -> int:
        """Returns the number of new tokens of an event. Raises TypeError, ValueError, AttributeError for one
        of another shape."""
        before, usage = self.completion_tokens, event.get("usage") or {}
        self.prompt_tokens = int(usage.get("prompt_tokens") or self.prompt_tokens)
        self.completion_tokens = int(usage.get("completion_tokens") or before)
        if self.is_exact is None and event.get("choices"):
            self.is_exact = bool(usage)
        return self.completion_tokens - before if self.is_exact else int(_has_output(event))


def _event(data: bytes) -> Mapping[str, Any]:
    """Raises RequestFailed."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestFailed("not JSON", repr(data[:80])) from None
    if not isinstance(event, dict):
        raise RequestFailed("not an object", repr(data[:80]))
    if error := event.get("error"):
        raise RequestFailed("error in the stream", _message(error))
    return event


def _has_output(event: Mapping[str, Any]) -> bool:
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        parts = (
            choice.get("text"),
            delta.get("content"),
            delta.get("reasoning_content"),
            delta.get("tool_calls"),
        )
        if any(parts) or delta.get("reasoning"):
            return True
    return False


def _refusal(status: int, body: bytes) -> RequestFailed:
    try:
        error = json.loads(body).get("error") or {}
    except (ValueError, RecursionError, AttributeError):
        return RequestFailed(str(status), repr(body[:80]))
    code = error.get("code") if isinstance(error, dict) else None
    return RequestFailed(f"{status} {code}" if isinstance(code, str) else str(status), _message(error))


def _message(error: Any) -> str:
    text = str(error.get("message", error) if isinstance(error, dict) else error)
    return " ".join(text.split())[:200]


def _broken(error: Exception) -> RequestFailed:
    return RequestFailed("connection" if isinstance(error, OSError) else "not HTTP", str(error))
