"""Answers of /v1/messages: a message with content blocks, whole or told of by events; and errors in that
form."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from frontend.errors import MAX_TEXT, Aborted, ServiceError
from frontend.http.exchange import event
from pagewire.v1 import generation_pb2

Json = dict[str, Any]

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_STOP_REASONS = {
    generation_pb2.FINISH_REASON_EOS: "end_turn",
    generation_pb2.FINISH_REASON_STOP: "end_turn",  # by a token; see _stop
    generation_pb2.FINISH_REASON_MAX_TOKENS: "max_tokens",
    generation_pb2.FINISH_REASON_CONTEXT_LENGTH: "model_context_window_exceeded",
    generation_pb2.FINISH_REASON_TIME_LIMIT: "max_tokens",
    generation_pb2.FINISH_REASON_TOOL_CALLS: "tool_use",
    generation_pb2.FINISH_REASON_REPETITION: "end_turn",
}
TEXT, THINKING, TOOL_USE = "text", "thinking", "tool_use"
_DELTAS = {
    TEXT: ("text_delta", "text"),
    THINKING: ("thinking_delta", "thinking"),
    TOOL_USE: ("input_json_delta", "partial_json"),
}
"""Type of a block -> type of its deltas, and their field."""
_UNREADABLE = "INVALID_JSON"
"""The name under which arguments go that are no JSON object, as Anthropic recommends it to clients."""


def message_error(error: ServiceError) -> Json:
    """Returns the JSON body of an error."""
    status = error.http_status
    fallback = "api_error" if status >= 500 else "invalid_request_error"
    kind = _ERROR_TYPES.get(status, fallback)
    return {"type": "error", "error": {"type": kind, "message": error.message[:MAX_TEXT]}}


class ContentBlocks:
    """The blocks of one answer, one after the other; the last may still grow."""

    def __init__(self) -> None:
        self.ended: list[Json] = []
        """The blocks that have ended."""
        self._open: Json | None = None
        self._pieces: list[str] = []

    def take(self, output: generation_pb2.SequenceOutput) -> Iterator[Json]:
        """Appends what a message has of the answer; yields the events."""
        for call in output.tool_calls:
            if not call.id and self._open is not None and self._open["type"] == TOOL_USE:
                yield self._grow(call.arguments)
        for kind, text in ((THINKING, output.reasoning), (TEXT, output.text)):
            if not text:
                continue
            if self._open is None or self._open["type"] != kind:
                more = {"signature": ""} if kind == THINKING else {}
                yield from self._begin({"type": kind, kind: "", **more})
            yield self._grow(text)
        for call in output.tool_calls:
            if call.id:
                yield from self._begin({"type": TOOL_USE, "id": call.id, "name": call.name, "input": {}})
                if call.arguments:
                    yield self._grow(call.arguments)

    def end(self) -> Iterator[Json]:
        """Ends the block that is open; yields its event."""
        if self._open is None:
            return
        block, self._open = self._open, None
        text, kind = "".join(self._pieces), block["type"]
        yield {"type": "content_block_stop", "index": len(self.ended)}
        self.ended.append(block | ({"input": _object(text)} if kind == TOOL_USE else {kind: text}))

    def _begin(self, block: Json) -> Iterator[Json]:
        yield from self.end()
        self._open, self._pieces = block, []
        yield {"type": "content_block_start", "index": len(self.ended), "content_block": block}

    def _grow(self, text: str) -> Json:
        assert self._open is not None
        self._pieces.append(text)
        kind, field = _DELTAS[self._open["type"]]
        delta = {"type": kind, field: text}
        return {"type": "content_block_delta", "index": len(self.ended), "delta": delta}


class MessageWriter:
    """Writes one answer; see pagewire_openai.endpoints.BodyWriter."""

    def __init__(self, request_id: str, model: str) -> None:
        self._id = f"msg_{request_id}"
        self._model = model
        self._blocks = ContentBlocks()
        self._has_begun = False
        self._finish: generation_pb2.Finish | None = None

    def whole(self, responses: Sequence[generation_pb2.GenerateResponse]) -> Json:
        (response,) = responses
        for _ in self._progress(response):
            pass
        if self._is_aborted:
            raise Aborted
        return self._message(response.usage)

    def events(self, place: int, response: generation_pb2.GenerateResponse) -> bytes:
        """Returns the events for a message, behind the one that begins the stream."""
        opening = (
            [] if self._has_begun else [{"type": "message_start", "message": self._message(response.usage)}]
        )
        self._has_begun = True
        return b"".join(map(_event, (*opening, *self._progress(response))))

    def end(self, usages: Iterable[generation_pb2.Usage]) -> bytes:
        """Returns the last events."""
        if self._is_aborted:
            return self.failure(Aborted())
        (usage,) = usages
        delta = {"type": "message_delta", "delta": _stop(self._finish), "usage": _usage(usage)}
        return _event(delta) + _event({"type": "message_stop"})

    def failure(self, error: ServiceError) -> bytes:
        """Returns the end of a stream that breaks off: no message_stop follows."""
        return _event(message_error(error))

    @property
    def _is_aborted(self) -> bool:
        return self._finish is not None and self._finish.reason == generation_pb2.FINISH_REASON_ABORTED

    def _progress(self, response: generation_pb2.GenerateResponse) -> Iterator[Json]:
        for output in response.sequences:
            yield from self._blocks.take(output)
            if output.HasField("finish"):
                self._finish = generation_pb2.Finish()
                self._finish.CopyFrom(output.finish)
                yield from self._blocks.end()

    def _message(self, usage: generation_pb2.Usage) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [*self._blocks.ended],
            **_stop(self._finish),
            "usage": _usage(usage),
        }


def _event(content: Json) -> bytes:
    return event(content, content["type"])


def _stop(finish: generation_pb2.Finish | None) -> Json:
    if finish is None:
        return {"stop_reason": None, "stop_sequence": None}
    matched = finish.WhichOneof("matched")
    if finish.reason == generation_pb2.FINISH_REASON_STOP and matched in ("stop", "stop_regex"):
        return {"stop_reason": "stop_sequence", "stop_sequence": getattr(finish, matched)}
    return {"stop_reason": _STOP_REASONS[finish.reason], "stop_sequence": None}


def _usage(usage: generation_pb2.Usage) -> Json:
    """Tokens of the prompt that were found in the prefix cache are not among input_tokens."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_prompt_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _object(arguments: str) -> Json:
    """Returns a call's arguments, which max_tokens may have cut."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {_UNREADABLE: arguments}
