"""Answers of /v1/responses: an object with output items, whole or told of by events."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frontend.errors import ServiceError
from frontend.http.exchange import event
from frontend.openai.answers.choices import FINISH_REASONS, usage_of
from frontend.openai.answers.errors import error_body
from frontend.openai.answers.items import COMPLETED, IN_PROGRESS, INCOMPLETE, OutputItems
from pagewire.v1 import generation_pb2

Json = dict[str, Any]
FAILED = "failed"
_ABORTED = {"code": "server_error", "message": "the request was aborted"}
_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {},
    "safety_identifier": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "user": None,
}
"""Fields of the request that the answer repeats -> what an absent one stands for."""
_FIXED: Mapping[str, Any] = {
    "background": False,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}
_UNCHARGED = {"cache_write_tokens": 0}
"""Required by clients: tokens that are charged for being cached."""


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """What an answer says of its request. request_id: ids of response and items are made of it. created: Unix
    time. temperature, top_p: in effect."""

    request_id: str
    created: int
    model: str
    fingerprint: str
    temperature: float
    top_p: float
    body: Mapping[str, Any]


class ResponseWriter:
    """Writes one answer; see frontend.openai.generation.BodyWriter."""

    def __init__(self, facts: ResponseFacts) -> None:
        self._facts = facts
        self._items = OutputItems(facts.request_id)
        self._status = IN_PROGRESS
        self._rest: Json = {}
        self._num_events = 0

    def whole(self, responses: Sequence[generation_pb2.GenerateResponse]) -> Json:
        """Returns a whole answer."""
        (response,) = responses
        for _ in self._progress(response):
            pass
        return self._object(_usage([response.usage]))

    def events(self, place: int, response: generation_pb2.GenerateResponse) -> bytes:
        """Returns the events for a message, behind those that begin the stream."""
        words = () if self._num_events else ("created", "in_progress")
        opening = [self._whole_event(f"response.{word}") for word in words]
        return b"".join((*opening, *(self._event(each) for each in self._progress(response))))

    def end(self, usages: Iterable[generation_pb2.Usage]) -> bytes:
        """Returns the last event, which has the whole answer."""
        return self._whole_event(f"response.{self._status}", _usage(usages))

    def failure(self, error: ServiceError) -> bytes:
        """Returns the last event of an answer that breaks off."""
        content = error_body(error)["error"]
        ending = [self._event(each) for each in self._items.end(INCOMPLETE)]
        self._status, self._rest = FAILED, {"error": content}
        return b"".join((*ending, self._whole_event("response.failed")))

    def _progress(self, response: generation_pb2.GenerateResponse) -> Iterator[Json]:
        for output in response.sequences:
            yield from self._items.take(output)
            if output.HasField("finish"):
                self._finish(output.finish.reason)
                yield from self._items.end(COMPLETED if self._status == COMPLETED else INCOMPLETE)

    def _finish(self, reason: "generation_pb2.FinishReason") -> None:
        word = FINISH_REASONS[reason]
        if word == "abort":
            self._status, self._rest = FAILED, {"error": _ABORTED}
        elif word == "length":
            self._status = INCOMPLETE
            self._rest = {"incomplete_details": {"reason": "max_output_tokens"}}
        else:
            self._status = COMPLETED

    def _whole_event(self, kind: str, usage: Json | None = None) -> bytes:
        return self._event({"type": kind, "response": self._object(usage)})

    def _event(self, content: Json) -> bytes:
        numbered = {**content, "sequence_number": self._num_events}
        self._num_events += 1
        return event(numbered, content["type"])

    def _object(self, usage: Json | None) -> Json:
        facts = self._facts
        echoed = {name: facts.body.get(name) for name in _ECHOED}
        return {
            "id": f"resp_{facts.request_id}",
            "object": "response",
            "created_at": facts.created,
            "model": facts.model,
            "system_fingerprint": facts.fingerprint,
            "status": self._status,
            "error": None,
            "incomplete_details": None,
            **self._rest,
            "output": self._items.ended,
            "temperature": facts.temperature,
            "top_p": facts.top_p,
            **{name: _ECHOED[name] if value is None else value for name, value in echoed.items()},
            **_FIXED,
            "usage": usage,
        }


def _usage(usages: Iterable[generation_pb2.Usage]) -> Json:
    counts = usage_of(usages)
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {**counts["prompt_tokens_details"], **_UNCHARGED},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": counts["completion_tokens_details"],
        "total_tokens": counts["total_tokens"],
    }
