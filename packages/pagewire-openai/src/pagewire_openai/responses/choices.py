"""Answers with choices, of /v1/chat/completions and /v1/completions: whole, and as chunks of a stream."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from frontend.errors import ServiceError
from frontend.http.error_body import error_body
from frontend.http.exchange import event
from pagewire.v1 import generation_pb2
from pagewire_openai.responses.logprobs import CompletionLogprobs, chat_logprobs, scored_tokens

DONE = b"data: [DONE]\n\n"

Response = generation_pb2.GenerateResponse
Output = generation_pb2.SequenceOutput
Json = dict[str, Any]

FINISH_REASONS = {
    generation_pb2.FINISH_REASON_EOS: "stop",
    generation_pb2.FINISH_REASON_STOP: "stop",
    generation_pb2.FINISH_REASON_MAX_TOKENS: "length",
    generation_pb2.FINISH_REASON_CONTEXT_LENGTH: "length",
    generation_pb2.FINISH_REASON_TIME_LIMIT: "length",
    generation_pb2.FINISH_REASON_ABORTED: "abort",
    generation_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
    generation_pb2.FINISH_REASON_REPETITION: "stop",
}
_UNFINISHED: Json = {"finish_reason": None}
"""The finish comes in a chunk of its own: some clients drop the content of the chunk that has it."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of an answer have. fingerprint: two answers with equal fingerprints, seeds and requests
    are equal. created: Unix time."""

    id: str
    created: int
    model: str
    fingerprint: str

    def around(self, kind: str, choices: list[Json], **more: Json | None) -> Json:
        """Returns an answer or a chunk. more: the usage, if any."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


class AnswerFormat(Protocol):
    """An endpoint's shape of answers. place: which of the request's prompts; 0 for a conversation."""

    whole_kind: str
    chunk_kind: str

    def choice(self, place: int, response: Response, output: Output) -> Json:
        """Returns the choice for a whole output."""

    def deltas(self, place: int, response: Response, output: Output) -> Iterator[Json]:
        """Yields the choices of the chunks for a part of an output."""


class ChatFormat:
    """The shape of /v1/chat/completions."""

    whole_kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, logprobs: bool) -> None:
        self._logprobs = logprobs
        self._begun: set[int] = set()

    def choice(self, place: int, response: Response, output: Output) -> Json:
        message: Json = {"role": "assistant", "content": output.text, "refusal": None}
        if output.reasoning:
            message["reasoning_content"] = output.reasoning
        if output.tool_calls:
            message["tool_calls"] = [_without_index(call) for call in _tool_calls(output)]
            message["content"] = output.text or None
        return {
            "index": output.index,
            "message": message,
            "logprobs": self._logprobs_of(output),
            **_finish(output),
        }

    def deltas(self, place: int, response: Response, output: Output) -> Iterator[Json]:
        """The role comes in a chunk of its own, as clients expect."""
        if output.index not in self._begun:
            self._begun.add(output.index)
            yield {
                "index": output.index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        delta: Json = {}
        if output.text or (self._logprobs and len(output.logprobs.logprobs)):
            delta["content"] = output.text
        if output.reasoning:
            delta["reasoning_content"] = output.reasoning
        if output.tool_calls:
            delta["tool_calls"] = _tool_calls(output)
        if delta:
            logprobs = self._logprobs_of(output)
            yield {"index": output.index, "delta": delta, "logprobs": logprobs, **_UNFINISHED}
        if output.HasField("finish"):
            yield {"index": output.index, "delta": {}, "logprobs": None, **_finish(output)}

    def _logprobs_of(self, output: Output) -> Json | None:
        return chat_logprobs(output) if self._logprobs and len(output.logprobs.logprobs) else None


class CompletionFormat:
    """The shape of /v1/completions."""

    whole_kind = chunk_kind = "text_completion"

    def __init__(self, logprobs: bool, echo: bool, sequences: int, hidden: Collection[bytes] = ()) -> None:
        """sequences: per prompt. hidden: tokens that the text leaves out."""
        self._logprobs = logprobs
        self._hidden = hidden
        self._echo = echo
        self._sequences = sequences
        self._lists: dict[int, CompletionLogprobs] = {}
        self._prompts: dict[int, Response] = {}

    def choice(self, place: int, response: Response, output: Output) -> Json:
        index = place * self._sequences + output.index
        logprobs = self._lists_of(index, place, response, output) if self._logprobs else None
        return {"index": index, "text": output.text, "logprobs": logprobs, **_finish(output)}

    def deltas(self, place: int, response: Response, output: Output) -> Iterator[Json]:
        choice = self.choice(place, response, output)
        if output.text and output.HasField("finish"):
            choice.pop("stop_reason", None)
            yield {**choice, **_UNFINISHED}
            choice |= _finish(output) | {"text": "", "logprobs": None}
        yield choice

    def _lists_of(self, index: int, place: int, response: Response, output: Output) -> Json:
        scored = scored_tokens(output.logprobs, output.token_bytes)
        if index not in self._lists:
            self._lists[index] = CompletionLogprobs(self._hidden)
            if self._echo:
                scored = chain(self._scored_prompt(place, response), scored)
        return self._lists[index].put(scored, output.text)

    def _scored_prompt(self, place: int, response: Response) -> Any:
        """Returns the prompt's tokens, which come once, for each of its sequences."""
        if place not in self._prompts:
            self._prompts[place] = Response()
            self._prompts[place].prompt.CopyFrom(response.prompt)
        prompt = self._prompts[place].prompt
        return scored_tokens(prompt.logprobs, prompt.token_bytes)


def usage_of(responses: Iterable[generation_pb2.Usage]) -> Json:
    """Returns the sum of usages."""
    total = generation_pb2.Usage()
    for usage in responses:
        total.prompt_tokens += usage.prompt_tokens
        total.cached_prompt_tokens += usage.cached_prompt_tokens
        total.image_tokens += usage.image_tokens
        total.audio_tokens += usage.audio_tokens
        total.completion_tokens += usage.completion_tokens
        total.reasoning_tokens += usage.reasoning_tokens
    return {
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "total_tokens": total.prompt_tokens + total.completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": total.cached_prompt_tokens,
            **({"image_tokens": total.image_tokens} if total.image_tokens else {}),
            **({"audio_tokens": total.audio_tokens} if total.audio_tokens else {}),
        },
        "completion_tokens_details": {"reasoning_tokens": total.reasoning_tokens},
    }


class ChoicesWriter:
    """Writes an answer with choices; see pagewire_openai.endpoints.BodyWriter."""

    def __init__(
        self,
        envelope: Envelope,
        form: AnswerFormat,
        *,
        include_usage: bool = False,
        continuous_usage: bool = False,
    ) -> None:
        """include_usage: end the stream with a chunk that has the usage. continuous_usage: each chunk has the
        usage so far."""
        self._envelope = envelope
        self._form = form
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage

    def whole(self, responses: Sequence[Response]) -> Json:
        choices = [
            self._form.choice(place, response, output)
            for place, response in enumerate(responses)
            for output in sorted(response.sequences, key=lambda output: output.index)
        ]
        usage = usage_of(response.usage for response in responses)
        return self._envelope.around(self._form.whole_kind, choices, usage=usage)

    def events(self, place: int, response: Response) -> bytes:
        more: dict[str, Json | None] = {"usage": None} if self._include_usage else {}
        if self._continuous_usage:
            more["usage"] = usage_of([response.usage])
        chunks = [
            event(self._envelope.around(self._form.chunk_kind, [choice], **more))
            for output in response.sequences
            for choice in self._form.deltas(place, response, output)
        ]
        return b"".join(chunks)

    def end(self, usages: Iterable[generation_pb2.Usage]) -> bytes:
        if not self._include_usage:
            return DONE
        return event(self._envelope.around(self._form.chunk_kind, [], usage=usage_of(usages))) + DONE

    def failure(self, error: ServiceError) -> bytes:
        """Returns the end of a stream that breaks off: no DONE follows."""
        return event(error_body(error))


def _finish(output: Output) -> Json:
    if not output.HasField("finish"):
        return {"finish_reason": None}
    finish = output.finish
    matched = finish.WhichOneof("matched")
    stopped = finish.reason == generation_pb2.FINISH_REASON_STOP and matched is not None
    return {
        "finish_reason": FINISH_REASONS[finish.reason],
        "stop_reason": getattr(finish, matched) if stopped and matched is not None else None,
    }


def _tool_calls(output: Output) -> list[Json]:
    calls = []
    for call in output.tool_calls:
        entry: Json = {"index": call.index}
        function: Json = {"arguments": call.arguments}
        if call.id:
            entry |= {"id": call.id, "type": "function"}
            function = {"name": call.name, **function}
        calls.append({**entry, "function": function})
    return calls


def _without_index(call: Json) -> Json:
    return {name: value for name, value in call.items() if name != "index"}
