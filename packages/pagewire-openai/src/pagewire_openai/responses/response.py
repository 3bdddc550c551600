"""Answers of /v1/responses: an object with output items, whole or told of by events.

The items are made of the parts of an answer as they come; each change is an event.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from frontend.errors import ServiceError
from frontend.http.error_body import error_body
from frontend.http.exchange import event
from pagewire.v1 import generation_pb2
from pagewire_openai.responses.choices import FINISH_REASONS, usage_of
from pagewire_openai.responses.logprobs import chat_logprobs

Json = dict[str, Any]
IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"
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


class Item(Protocol):
    """An item that may still grow. Events lack the place of the item, which OutputItems adds."""

    def content(self, status: str) -> Json:
        """Returns the item as it is now."""

    def begin(self) -> Iterator[Json]:
        """Yields the events behind that of the item itself."""

    def end(self) -> Iterator[Json]:
        """Yields the events before the end of the item."""


class TextItem:
    """The message, or the reasoning: one part with text."""

    def __init__(self, item_id: str, *, reasoning: bool) -> None:
        self._id = item_id
        self.is_reasoning = reasoning
        self._pieces: list[str] = []
        self._logprobs: list[Json] = []
        self._stem = "response.reasoning_text" if reasoning else "response.output_text"

    def content(self, status: str) -> Json:
        begun = status != IN_PROGRESS
        shared: Json = {"id": self._id, "status": status, "content": [self._part()] if begun else []}
        if self.is_reasoning:
            return {"type": "reasoning", "summary": [], **shared}
        return {"type": "message", "role": "assistant", **shared}

    def begin(self) -> Iterator[Json]:
        yield self._of_part({"type": "response.content_part.added", "part": self._part()})

    def add(self, text: str, logprobs: list[Json]) -> Iterator[Json]:
        """Appends text. logprobs: of its tokens."""
        self._pieces.append(text)
        self._logprobs += logprobs
        yield self._of_part({"type": f"{self._stem}.delta", "delta": text, **self._scores(logprobs)})

    def end(self) -> Iterator[Json]:
        text = "".join(self._pieces)
        yield self._of_part({"type": f"{self._stem}.done", "text": text, **self._scores(self._logprobs)})
        yield self._of_part({"type": "response.content_part.done", "part": self._part()})

    def _of_part(self, content: Json) -> Json:
        return {**content, "item_id": self._id, "content_index": 0}

    def _part(self) -> Json:
        text = "".join(self._pieces)
        if self.is_reasoning:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*self._logprobs]}

    def _scores(self, logprobs: list[Json]) -> Json:
        return {} if self.is_reasoning else {"logprobs": logprobs}


class CallItem:
    """A call of a function."""

    def __init__(self, item_id: str, call_id: str, name: str) -> None:
        self._id = item_id
        self._call_id = call_id
        self._name = name
        self._arguments: list[str] = []

    def content(self, status: str) -> Json:
        return {
            "type": "function_call",
            "id": self._id,
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "".join(self._arguments),
        }

    def begin(self) -> Iterator[Json]:
        yield from ()

    def add(self, arguments: str) -> Iterator[Json]:
        self._arguments.append(arguments)
        yield {
            "type": "response.function_call_arguments.delta",
            "item_id": self._id,
            "delta": arguments,
        }

    def end(self) -> Iterator[Json]:
        yield {
            "type": "response.function_call_arguments.done",
            "item_id": self._id,
            "name": self._name,
            "arguments": "".join(self._arguments),
        }


class OutputItems:
    """The items of one answer: of each, one after the other, the last may still grow."""

    def __init__(self, stem: str) -> None:
        """stem: what ids of items end with."""
        self.ended: list[Json] = []
        """The items that have ended."""
        self._stem = stem
        self._open: Item | None = None
        self._unsent: list[Json] = []  # log-probabilities of tokens that have shown no text yet

    def take(self, output: generation_pb2.SequenceOutput) -> Iterator[Json]:
        """Appends what a message has of the answer; yields the events."""
        if len(output.logprobs.logprobs):
            self._unsent += chat_logprobs(output)["content"]
        begun = [call for call in output.tool_calls if call.id]
        for call in output.tool_calls:
            if not call.id and isinstance(self._open, CallItem):
                yield from self._placed(self._open.add(call.arguments))
        if output.reasoning:
            yield from self._add_text(output.reasoning, reasoning=True)
        if output.text:
            yield from self._add_text(output.text, reasoning=False)
        for call in begun:
            item = CallItem(f"fc_{self._suffix()}", call.id, call.name)
            yield from self._begin(item)
            if call.arguments:
                yield from self._placed(item.add(call.arguments))

    def end(self, status: str) -> Iterator[Json]:
        """Ends the item that is open; yields the events."""
        if self._open is None:
            return
        item, self._open = self._open, None
        place = len(self.ended)
        yield from self._placed(item.end())
        content = item.content(status)
        yield {"type": "response.output_item.done", "output_index": place, "item": content}
        self.ended.append(content)

    def _add_text(self, text: str, *, reasoning: bool) -> Iterator[Json]:
        item = self._open
        if not isinstance(item, TextItem) or item.is_reasoning != reasoning:
            item = TextItem(f"{'rs' if reasoning else 'msg'}_{self._suffix()}", reasoning=reasoning)
            yield from self._begin(item)
        logprobs: list[Json] = []
        if not reasoning:
            logprobs, self._unsent = self._unsent, []
        yield from self._placed(item.add(text, logprobs))

    def _begin(self, item: Item) -> Iterator[Json]:
        yield from self.end(COMPLETED)
        self._open = item
        yield {
            "type": "response.output_item.added",
            "output_index": len(self.ended),
            "item": item.content(IN_PROGRESS),
        }
        yield from self._placed(item.begin())

    def _placed(self, events: Iterator[Json]) -> Iterator[Json]:
        for each in events:
            yield {**each, "output_index": len(self.ended)}

    def _suffix(self) -> str:
        """Returns the end of the next item's id."""
        place = len(self.ended) + (self._open is not None)
        return f"{self._stem}_{place}"


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
    """Writes one answer; see pagewire_openai.endpoints.BodyWriter."""

    def __init__(self, facts: ResponseFacts) -> None:
        self._facts = facts
        self._items = OutputItems(facts.request_id)
        self._status = IN_PROGRESS
        self._rest: Json = {}
        self._num_events = 0

    def whole(self, responses: Sequence[generation_pb2.GenerateResponse]) -> Json:
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
