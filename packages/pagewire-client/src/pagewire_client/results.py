"""Results, made from the messages of a service."""

import dataclasses
import enum
from collections.abc import Iterable
from datetime import timedelta
from itertools import islice, repeat
from math import isnan
from typing import Any

from google.protobuf.duration_pb2 import Duration

from pagewire.v1 import generation_pb2, pooling_pb2, tokenizer_pb2
from pagewire_client.schemas import Parser


class FinishReason(enum.StrEnum):
    """Why a sequence ended; the values of pagewire.v1.FinishReason."""

    EOS = "eos"
    STOP = "stop"
    MAX_TOKENS = "max_tokens"
    CONTEXT_LENGTH = "context_length"
    TIME_LIMIT = "time_limit"
    ABORTED = "aborted"
    TOOL_CALLS = "tool_calls"
    REPETITION = "repetition"


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate token. rank: 1 for the most probable token of the vocabulary."""

    token_id: int
    logprob: float
    rank: int


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of one token by the model itself: before temperature, penalties and masks.

    rank: 1 for the most probable token. candidates: in the order of pagewire.v1.TokenLogprobs.
    """

    logprob: float
    rank: int
    candidates: list[Candidate] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class ToolCall:
    """A call that the model made, or a part of it: then id and name are in the first part only.

    index: which call of the sequence. arguments: JSON text, which is the model's own.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclasses.dataclass(slots=True)
class Delta:
    """New output of one sequence.

    position: index, within the sequence, of the first token of token_ids.
    finish_reason: set in the sequence's last delta.
    stop: the stop string or regular expression, or the id of the EOS or stop token, that ended the sequence.
    logprobs: of token_ids, if requested.
    reasoning, tool_calls: new parts of what is not in the text.
    """

    index: int
    text: str
    token_ids: list[int]
    position: int
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    reasoning: str = ""
    tool_calls: list[ToolCall] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Output:
    """One sequence as received so far; the fields are as in Delta.

    cumulative_logprob: sum of the tokens' log-probabilities, if requested; set at the end.
    """

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    cumulative_logprob: float | None = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = dataclasses.field(default_factory=list)

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message for the next turn: text and calls, without reasoning."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments} for call in self.tool_calls
            ]
        return message

    def add_calls(self, parts: Iterable[ToolCall]) -> None:
        """Appends parts of calls."""
        for part in parts:
            while len(self.tool_calls) <= part.index:
                self.tool_calls.append(ToolCall(len(self.tool_calls)))
            call = self.tool_calls[part.index]
            call.id += part.id
            call.name += part.name
            call.arguments += part.arguments


@dataclasses.dataclass(frozen=True, slots=True)
class DrafterUsage:
    """What one drafter drafted for a request; see pagewire.v1.DrafterUsage."""

    drafter: str
    draft_tokens: int
    accepted_draft_tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Token counts over all sequences."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    reasoning_tokens: int = 0
    drafters: tuple[DrafterUsage, ...] = ()
    image_tokens: int = 0
    audio_tokens: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """Seconds of waiting by cause; see pagewire.v1.Waits."""

    queue: float = 0.0
    rows: float = 0.0
    blocks: float = 0.0
    budget: float = 0.0
    trial: float = 0.0
    client: float = 0.0
    adapter: float = 0.0
    kv_transfer: float = 0.0
    encoder: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Timings:
    """Seconds spent in each phase, and what the request waited for; see pagewire.v1.Timings."""

    preprocess: float
    queue: float
    prefill: float
    decode: float
    total: float
    preempted: float = 0.0
    waits: Waits = Waits()


@dataclasses.dataclass(slots=True)
class Generation:
    """The answer to a request as received so far. Outputs are ordered by index.

    truncated_tokens: tokens of the prompt that truncate_to removed.
    parameters: with which the request runs, if requested.
    adapter_digest: of the adapter that answers; empty: the request names none.
    media_digests: SHA-256 of each image that the server fetched from a URL, in order.
    prompt_logprobs: of the prompt's tokens from prompt_logprobs_start on, if requested; None for the first
    token of a prompt, which has none.
    """

    request_id: str = ""
    model: str = ""
    seed: int = 0
    prompt_tokens: int = 0
    truncated_tokens: int = 0
    outputs: list[Output] = dataclasses.field(default_factory=list)
    usage: Usage = Usage()
    timings: Timings | None = None
    parameters: generation_pb2.EffectiveParameters | None = None
    adapter_digest: bytes = b""
    media_digests: list[bytes] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = dataclasses.field(default_factory=list)
    parser: Parser | None = dataclasses.field(default=None, repr=False, compare=False)
    """Makes objects of outputs, if the request had a schema."""

    @property
    def parsed(self) -> Any:
        """What the first sequence stands for: an object of the request's schema, or JSON's own types.

        Raises ValueError when the request had no schema, and when the sequence was cut.
        """
        if self.parser is None:
            raise ValueError("the request had neither a schema nor json_object")
        if self.finish_reason is not FinishReason.EOS:
            raise ValueError(f"the output is not complete: it ended by {self.finish_reason or 'an error'}")
        return self.parser(self.text)

    @property
    def text(self) -> str:
        """Text of the first sequence."""
        return self.outputs[0].text if self.outputs else ""

    @property
    def reasoning(self) -> str:
        """Reasoning of the first sequence."""
        return self.outputs[0].reasoning if self.outputs else ""

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Calls of the first sequence."""
        return self.outputs[0].tool_calls if self.outputs else []

    @property
    def token_ids(self) -> list[int]:
        """Token ids of the first sequence."""
        return self.outputs[0].token_ids if self.outputs else []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Finish reason of the first sequence."""
        return self.outputs[0].finish_reason if self.outputs else None

    def add(self, response: generation_pb2.GenerateResponse) -> list[Delta]:
        """Adds a message and returns its deltas."""
        if response.HasField("prompt"):  # first message
            self.request_id, self.model = response.request_id, response.model
            self.seed, self.prompt_tokens = response.seed, response.prompt.tokens
            self.adapter_digest = response.adapter.digest
            self.media_digests = list(response.media_digests)
            self.truncated_tokens = response.prompt.truncated_tokens
            if response.HasField("parameters"):
                self.parameters = response.parameters
            if response.prompt.HasField("logprobs"):
                scores = _token_logprobs(response.prompt.logprobs)
                self.prompt_logprobs = [None if isnan(score.logprob) else score for score in scores]
        if response.HasField("usage"):
            self.usage = _usage(response.usage)
        if response.HasField("timings"):
            self.timings = _timings(response.timings)
        deltas = []
        for sequence in response.sequences:
            delta = _delta(sequence)
            self._append(delta)
            deltas.append(delta)
        return deltas

    def _append(self, delta: Delta) -> None:
        while len(self.outputs) <= delta.index:
            self.outputs.append(Output(len(self.outputs)))
        output = self.outputs[delta.index]
        output.text += delta.text
        output.token_ids += delta.token_ids
        output.logprobs += delta.logprobs
        output.reasoning += delta.reasoning
        output.add_calls(delta.tool_calls)
        if delta.finish_reason is not None:
            output.finish_reason, output.stop = delta.finish_reason, delta.stop
            if output.logprobs:  # the server knows a part of them only, if it has continued the stream
                output.cumulative_logprob = sum(score.logprob for score in output.logprobs)


@dataclasses.dataclass(frozen=True, slots=True)
class Classes:
    """What several inputs were classified as.

    labels: of the checkpoint. probabilities: of each input, one per label; a reward model's numbers.
    """

    labels: list[str]
    probabilities: list[list[float]]


def classes(response: pooling_pb2.ClassifyResponse) -> Classes:
    """Returns the classes of a message."""
    return Classes(list(response.labels), [list(each.probabilities) for each in response.results])


@dataclasses.dataclass(frozen=True, slots=True)
class DocumentScore:
    """The relevance of a document. index: of the document in the request."""

    index: int
    score: float


def document_scores(response: pooling_pb2.ScoreResponse) -> list[DocumentScore]:
    """Returns the scores of a message, best first."""
    return [DocumentScore(each.index, each.score) for each in response.scores]


@dataclasses.dataclass(frozen=True, slots=True)
class ContinuationScore:
    """A scored continuation.

    logprob: sum over its tokens. token_logprobs: of each token, if requested.
    """

    logprob: float
    num_tokens: int
    token_logprobs: list[float]


def continuation_scores(response: pooling_pb2.ScoreContinuationsResponse) -> list[ContinuationScore]:
    """Returns the scores of a message, in its order."""
    return [
        ContinuationScore(score.logprob, score.tokens, list(score.token_logprobs))
        for score in response.scores
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Tokenized:
    """A tokenized prompt.

    text: a conversation as rendered by the chat template; empty for other prompts.
    """

    token_ids: list[int]
    text: str


def tokenized(results: Iterable[tokenizer_pb2.Tokenization]) -> list[Tokenized]:
    """Returns the prompts of the messages, in their order."""
    return [Tokenized(list(result.token_ids), result.rendered_text) for result in results]


def _delta(sequence: generation_pb2.SequenceOutput) -> Delta:
    reason, stop = None, None
    if sequence.HasField("finish"):
        name = generation_pb2.FinishReason.Name(sequence.finish.reason)
        reason = FinishReason(name.removeprefix("FINISH_REASON_").lower())
        matched = sequence.finish.WhichOneof("matched")
        stop = getattr(sequence.finish, matched) if matched else None
    return Delta(
        sequence.index,
        sequence.text,
        sequence.token_ids[:],
        sequence.position,
        reason,
        stop,
        _token_logprobs(sequence.logprobs) if sequence.HasField("logprobs") else [],
        sequence.reasoning,
        [ToolCall(part.index, part.id, part.name, part.arguments) for part in sequence.tool_calls],
    )


def _token_logprobs(columns: generation_pb2.TokenLogprobs) -> list[TokenLogprob]:
    candidates = map(
        Candidate, columns.candidate_token_ids, columns.candidate_logprobs, columns.candidate_ranks
    )
    counts = columns.candidate_counts or repeat(0)
    return [
        TokenLogprob(logprob, rank, list(islice(candidates, count)))
        for logprob, rank, count in zip(columns.logprobs, columns.ranks, counts, strict=False)
    ]


def _usage(usage: generation_pb2.Usage) -> Usage:
    return Usage(
        usage.prompt_tokens,
        usage.cached_prompt_tokens,
        usage.completion_tokens,
        usage.draft_tokens,
        usage.accepted_draft_tokens,
        usage.reasoning_tokens,
        tuple(
            DrafterUsage(each.drafter, each.draft_tokens, each.accepted_draft_tokens)
            for each in usage.drafters
        ),
        usage.image_tokens,
        usage.audio_tokens,
    )


def _timings(timings: generation_pb2.Timings) -> Timings:
    return Timings(
        preprocess=_seconds(timings.preprocess),
        queue=_seconds(timings.queue),
        prefill=_seconds(timings.prefill),
        decode=_seconds(timings.decode),
        total=_seconds(timings.total),
        preempted=_seconds(timings.preempted),
        waits=Waits(
            **{each.name: _seconds(getattr(timings.waits, each.name)) for each in dataclasses.fields(Waits)}
        ),
    )


def _seconds(duration: Duration) -> float:
    return duration.ToTimedelta() / timedelta(seconds=1)
