"""Everything about a request that can be judged without a tokenizer or an engine. Pure.

FIELDS has an entry for each field that is built; a field that a client sets and that has none is
refused by its path. So a field that is added to the protos is refused until somebody builds it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from google.protobuf.message import Message

from frontend.errors import InvalidRequest, Unsupported
from frontend.search import contradictions, returned
from pagewire.beam_limits import MAX_LENGTH_PENALTY
from pagewire.v1 import generation_pb2, pooling_pb2, prompt_pb2, tokenizer_pb2

MAX_ID_BYTES = 256
MAX_BAD_WORDS = 128
MAX_STRING_BYTES = 1024
"""Of a stop string or a bad word."""
MAX_PROMPTS = 1024
"""Prompts or sequences of one request to the tokenizer."""
MAX_SCORED_BYTES = 2 << 20
"""Of all continuations of one request."""
MAX_DETOKENIZED = 1 << 19
"""Token ids of one request to the tokenizer, in all."""
MAX_PARTS = 16_384
"""Messages inside a request (of a conversation, mostly). Looking at one takes some 5 us of the event
loop's time."""
MAX_ABORTS = 4096
MAX_VIOLATIONS = 8
"""Reported at once: they travel in a trailer, and HTTP/2 peers accept 8 KiB of those."""
MAX_COUNT = 2**31 - 1
MAX_SECONDS = 366 * 24 * 3600

NOT_BUILT = "is not built yet"


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests are measured against: facts of the model, and limits of the server."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    max_sequences: int
    max_stop_strings: int
    max_priority: int = 0
    """With either sign; 0: the engine serves in order of arrival."""
    max_logprobs: int = 0


class Kind(Enum):
    """How to treat a field that has no value of its own to check."""

    NESTED = "look inside"
    FREE = "any value is fine"


Check = Callable[[Any, Limits], str | None]
"""From a field's value to what is wrong with it."""


def check_generate(request: generation_pb2.GenerateRequest, limits: Limits) -> None:
    """Judges a generation request. Raises InvalidRequest or Unsupported, naming the fields."""
    findings = _Findings()
    findings.walk(request, "", "", limits)
    _check_prompt(request.prompt, "prompt", findings, may_be_empty=False)
    _check_counts(request, findings)
    _check_choice(request, limits, findings)
    _check_continuation(request, limits, findings)
    if request.output.echo and request.output.HasField("text") and not request.output.text:
        findings.invalid["output.echo"] = "is text, which output.text switches off"
    if request.output.HasField("prompt_logprobs_start") and not request.output.HasField("prompt_logprobs"):
        findings.invalid["output.prompt_logprobs_start"] = "means nothing without output.prompt_logprobs"
    findings.raise_any()


def check_continuations(
    request: pooling_pb2.ScoreContinuationsRequest, limits: Limits, max_continuations: int
) -> None:
    """Judges a request to score continuations. Raises InvalidRequest or Unsupported."""
    findings = _Findings()
    suffix = len(f"#{max_continuations}")  # each continuation is a request with this id and its place
    findings.add("request_id", _identifier_problem(request.request_id, MAX_ID_BYTES - suffix))
    findings.add("priority", _priority(request.priority, limits))
    findings.add("tenant", _identifier_problem(request.tenant))
    findings.walk(request.cache, "cache", "cache", limits)
    findings.walk(request.prompt, "prompt", "prompt", limits)
    _check_prompt(request.prompt, "prompt", findings, may_be_empty=False)
    count, texts = len(request.continuations), request.continuations
    if not 1 <= count <= max_continuations:
        findings.invalid["continuations"] = f"must be 1 to {max_continuations}, not {count}"
    elif (size := sum(len(text.encode()) for text in texts)) > MAX_SCORED_BYTES:
        findings.invalid["continuations"] = f"must be at most {MAX_SCORED_BYTES} bytes in all, not {size}"
    for place, text in enumerate(texts[:max_continuations]):
        findings.add(f"continuations[{place}]", None if text else "must not be empty")
    findings.raise_any()


def check_tokenize(request: tokenizer_pb2.TokenizeRequest, limits: Limits) -> None:
    """Judges the prompts of a tokenization request. Raises InvalidRequest or Unsupported."""
    findings = _Findings()
    if not 1 <= len(request.prompts) <= MAX_PROMPTS:
        findings.invalid["prompts"] = f"must be 1 to {MAX_PROMPTS}, not {len(request.prompts)}"
        findings.raise_any()
    for place, prompt in enumerate(request.prompts):
        path = f"prompts[{place}]"
        findings.walk(prompt, path, "prompt", limits)
        _check_prompt(prompt, path, findings, may_be_empty=True)
    findings.raise_any()


def check_detokenize(request: tokenizer_pb2.DetokenizeRequest, vocab_size: int) -> None:
    """Judges the sequences of a detokenization request. Raises InvalidRequest."""
    findings = _Findings()
    if not 1 <= len(request.sequences) <= MAX_PROMPTS:
        findings.invalid["sequences"] = f"must be 1 to {MAX_PROMPTS}, not {len(request.sequences)}"
        findings.raise_any()
    if sum(len(sequence.ids) for sequence in request.sequences) > MAX_DETOKENIZED:
        findings.invalid["sequences"] = f"must be at most {MAX_DETOKENIZED} ids in all"
        findings.raise_any()
    for place, sequence in enumerate(request.sequences):
        findings.add(f"sequences[{place}].ids", outside_vocabulary(sequence.ids, vocab_size))
    findings.raise_any()


def check_abort(request: generation_pb2.AbortRequest) -> None:
    """Judges the ids of an Abort. Raises InvalidRequest."""
    findings = _Findings()
    if len(request.request_ids) > MAX_ABORTS:
        findings.invalid["request_ids"] = f"must be at most {MAX_ABORTS}, not {len(request.request_ids)}"
        findings.raise_any()
    for place, request_id in enumerate(request.request_ids):
        findings.add(f"request_ids[{place}]", _identifier_problem(request_id))
    findings.raise_any()


def check_token_ids(ids: Sequence[int], vocab_size: int, path: str) -> None:
    """Judges a prompt's token ids, apart from the rest because they may be many."""
    problem = outside_vocabulary(ids, vocab_size)
    if problem is not None:
        raise InvalidRequest({path: problem})


def outside_vocabulary(ids: Iterable[int], vocab_size: int) -> str | None:
    """What is wrong with token ids of which one is too large; None: nothing."""
    largest = max(ids, default=0)
    if largest < vocab_size:
        return None
    return f"must be below the vocabulary size of {vocab_size}, not {largest}"


class _Findings:
    """What is wrong, by path."""

    def __init__(self) -> None:
        self.invalid: dict[str, str] = {}
        self.unsupported: dict[str, str] = {}
        self._num_parts = 0

    def add(self, path: str, problem: str | None) -> None:
        if problem is not None:
            self.invalid[path] = problem

    def walk(self, message: Message, path: str, rule_path: str, limits: Limits) -> None:
        """Looks at the fields that are set. rule_path: the same as path, without indexes."""
        for field, value in message.ListFields():
            where = f"{path}.{field.name}" if path else field.name
            name = f"{rule_path}.{field.name}" if rule_path else field.name
            rule = FIELDS.get(name)
            if rule is None:
                self.unsupported[where] = NOT_BUILT
            elif rule is Kind.NESTED:
                self._num_parts += len(value) if field.is_repeated else 1
                if self._num_parts > MAX_PARTS:
                    self.invalid[where] = f"has more than {MAX_PARTS} parts"
                    self.raise_any()
                for place, part in enumerate(value) if field.is_repeated else ((None, value),):
                    self.walk(part, where if place is None else f"{where}[{place}]", name, limits)
            elif not isinstance(rule, Kind):
                self.add(where, rule(value, limits))

    def raise_any(self) -> None:
        """Raises what was found; what is not built yet counts less than what is wrong."""
        if self.invalid:
            raise InvalidRequest(dict(list(self.invalid.items())[:MAX_VIOLATIONS]))
        if self.unsupported:
            raise Unsupported(dict(list(self.unsupported.items())[:MAX_VIOLATIONS]))


def _check_prompt(prompt: prompt_pb2.Prompt, path: str, findings: _Findings, *, may_be_empty: bool) -> None:
    kind = prompt.WhichOneof("kind")
    if kind is None:
        findings.invalid[path] = "is required: text, token_ids or chat"
    elif kind == "text" and not prompt.text and not may_be_empty:
        findings.invalid[f"{path}.text"] = "must not be empty"
    elif kind == "token_ids" and not prompt.token_ids.ids and not may_be_empty:
        findings.invalid[f"{path}.token_ids.ids"] = "must not be empty"
    elif kind == "chat":
        _check_chat(prompt.chat, f"{path}.chat", findings)


def _check_chat(chat: prompt_pb2.Chat, path: str, findings: _Findings) -> None:
    if not chat.messages:
        findings.invalid[f"{path}.messages"] = "must not be empty"
    for place, message in enumerate(chat.messages):
        if not message.role:
            findings.invalid[f"{path}.messages[{place}].role"] = "must not be empty"
    if chat.continue_final_message and chat.add_generation_prompt:
        problem = "cannot be combined with add_generation_prompt"
        findings.invalid[f"{path}.continue_final_message"] = problem


def _check_counts(request: generation_pb2.GenerateRequest, findings: _Findings) -> None:
    sampling, stopping = request.sampling, request.stopping
    findings.invalid.update(contradictions(request))
    if sampling.HasField("beam_search") and request.output.HasField("logprobs"):
        findings.unsupported["output.logprobs"] = f"{NOT_BUILT} for sampling.beam_search"
    if stopping.HasField("max_tokens") and stopping.min_tokens > stopping.max_tokens:
        problem = f"must not exceed max_tokens ({stopping.max_tokens}), not {stopping.min_tokens}"
        findings.invalid["stopping.min_tokens"] = problem


def _check_choice(request: generation_pb2.GenerateRequest, limits: Limits, findings: _Findings) -> None:
    """Whether at least one token can be chosen."""
    sampling, stopping = request.sampling, request.stopping
    if not (sampling.allowed_token_ids or sampling.bad_token_ids):
        return
    barred = set(sampling.bad_token_ids)
    if stopping.min_tokens:  # which the tokens that would end the sequence have to wait for
        barred.update(stopping.stop_token_ids, () if stopping.ignore_eos else limits.eos_token_ids)
    if sampling.allowed_token_ids:
        if barred.issuperset(sampling.allowed_token_ids):
            findings.invalid["sampling.allowed_token_ids"] = "leaves no token to choose"
    elif len(barred) >= limits.vocab_size:
        findings.invalid["sampling.bad_token_ids"] = "leaves no token to choose"


def _check_continuation(request: generation_pb2.GenerateRequest, limits: Limits, findings: _Findings) -> None:
    """What can be said of it without the prompt; see frontend.continuation for the rest."""
    if not request.HasField("continuation"):
        return
    sampling = request.sampling
    draws = not (sampling.HasField("temperature") and sampling.temperature == 0)
    if draws and not (sampling.HasField("seed") or sampling.HasField("beam_search")):
        problem = "is required to continue a stream, unless temperature is 0: its first message reported it"
        findings.invalid["sampling.seed"] = problem
    n = returned(sampling)
    seen: set[int] = set()
    for place, sequence in enumerate(request.continuation.sequences):
        path = f"continuation.sequences[{place}]"
        if sequence.index >= n:
            findings.invalid[f"{path}.index"] = f"must be below n ({n}), not {sequence.index}"
        elif sequence.index in seen:
            findings.invalid[f"{path}.index"] = f"{sequence.index} is there twice"
        seen.add(sequence.index)
        findings.add(f"{path}.token_ids", outside_vocabulary(sequence.token_ids, limits.vocab_size))


def _number(low: float, high: float, *, above: bool = False) -> Check:
    """A number in [low, high], or in (low, high]. NaN is in no interval."""
    interval = f"{'(' if above else '['}{low:.10g}, {high:.10g}]"

    def check(value: float, limits: Limits) -> str | None:
        if (low < value if above else low <= value) and value <= high:
            return None
        return f"must be in {interval}, not {value:.10g}"

    return check


def _known_value(enum: Any) -> Check:
    def check(value: int, limits: Limits) -> str | None:
        return None if value in enum.values() else f"has no value {value}"

    return check


def _strings(most: int) -> Check:
    """Strings that are neither empty nor long; the server may allow fewer than `most`."""

    def check(values: Sequence[str], limits: Limits) -> str | None:
        if len(values) > most:
            return f"must be at most {most} strings, not {len(values)}"
        for value in values:
            if not 1 <= len(value.encode()) <= MAX_STRING_BYTES:
                return f"must be strings of 1 to {MAX_STRING_BYTES} bytes, not {len(value.encode())}"
        return None

    return check


def _stop_strings(values: Sequence[str], limits: Limits) -> str | None:
    return _strings(limits.max_stop_strings)(values, limits)


def _token_ids(values: Sequence[int], limits: Limits) -> str | None:
    if len(values) > limits.vocab_size:
        return f"must be at most {limits.vocab_size} ids, as the vocabulary has, not {len(values)}"
    return outside_vocabulary(values, limits.vocab_size)


def _logit_bias(values: Any, limits: Limits) -> str | None:
    problem = _token_ids(values, limits)
    if problem is None and not all(-100 <= bias <= 100 for bias in values.values()):
        return "must be in [-100, 100] for each token"
    return problem


def _sequences(value: int, limits: Limits) -> str | None:
    if 1 <= value <= limits.max_sequences:
        return None
    return f"must be 1 to {limits.max_sequences}, not {value}"


def _priority(value: int, limits: Limits) -> str | None:
    most = limits.max_priority
    if -most <= value <= most:
        return None
    if not most:
        return f"must be 0, not {value}: the server serves in order of arrival (--policy fcfs)"
    return f"must be {-most} to {most}, not {value}"


def num_candidates(options: generation_pb2.LogprobOptions, vocab_size: int) -> int:
    """Candidates that are asked for at each position."""
    return vocab_size if options.all else options.top_n or len(options.token_ids.ids)


def _too_many_candidates(count: int, limits: Limits) -> str | None:
    if count <= limits.max_logprobs:
        return None
    return f"must be at most {limits.max_logprobs} candidates, not {count}"


def _top_n(value: int, limits: Limits) -> str | None:
    return _too_many_candidates(value, limits)


def _candidate_ids(values: Sequence[int], limits: Limits) -> str | None:
    if len(set(values)) != len(values):
        return "must be different ids"
    return _too_many_candidates(len(values), limits) or outside_vocabulary(values, limits.vocab_size)


def _all_candidates(value: bool, limits: Limits) -> str | None:
    return _too_many_candidates(limits.vocab_size if value else 0, limits)


def _identifier(value: str, limits: Limits) -> str | None:
    return _identifier_problem(value)


def _identifier_problem(value: str, most: int = MAX_ID_BYTES) -> str | None:
    if len(value.encode()) > most or not value.isprintable():
        return f"must be at most {most} bytes of printable characters"
    return None


def _time_limit(value: Any, limits: Limits) -> str | None:
    seconds = value.seconds + value.nanos / 1e9
    if 0 < seconds <= MAX_SECONDS and 0 <= value.nanos < 1_000_000_000:
        return None
    return f"must be positive, and at most {MAX_SECONDS} s"


_at_least_one = _number(1, MAX_COUNT)

FIELDS: dict[str, Check | Kind] = {
    "request_id": _identifier,
    "model": _identifier,
    "priority": _priority,
    "tenant": _identifier,
    "prompt": Kind.NESTED,
    "prompt.text": Kind.FREE,
    "prompt.token_ids": Kind.NESTED,
    "prompt.token_ids.ids": Kind.FREE,  # see check_token_ids
    "prompt.chat": Kind.NESTED,
    "prompt.chat.messages": Kind.NESTED,
    "prompt.chat.messages.role": _identifier,
    "prompt.chat.messages.content": Kind.NESTED,
    "prompt.chat.messages.content.text": Kind.FREE,
    "prompt.chat.messages.name": _identifier,
    "prompt.chat.messages.reasoning": Kind.FREE,
    "prompt.chat.add_generation_prompt": Kind.FREE,
    "prompt.chat.continue_final_message": Kind.FREE,
    "prompt.chat.template_kwargs": Kind.FREE,  # see frontend.chat_template
    "prompt.add_special_tokens": Kind.FREE,
    "prompt.truncate_to": _at_least_one,
    "prompt.truncation_side": _known_value(prompt_pb2.TruncationSide),
    "sampling": Kind.NESTED,
    "sampling.temperature": _number(0, 100),
    "sampling.top_p": _number(0, 1, above=True),
    "sampling.top_k": _number(0, MAX_COUNT),
    "sampling.min_p": _number(0, 1),
    "sampling.typical_p": _number(0, 1, above=True),
    "sampling.frequency_penalty": _number(-2, 2),
    "sampling.presence_penalty": _number(-2, 2),
    "sampling.repetition_penalty": _number(0.01, 100),
    "sampling.seed": Kind.FREE,
    "sampling.n": _sequences,
    "sampling.best_of": _sequences,
    "sampling.beam_search": Kind.NESTED,
    "sampling.beam_search.width": _sequences,
    "sampling.beam_search.length_penalty": _number(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
    "sampling.beam_search.early_stopping": Kind.FREE,
    "sampling.logit_bias": _logit_bias,
    "sampling.allowed_token_ids": _token_ids,
    "sampling.bad_words": _strings(MAX_BAD_WORDS),
    "sampling.bad_token_ids": _token_ids,
    "stopping": Kind.NESTED,
    "stopping.max_tokens": _at_least_one,
    "stopping.min_tokens": _number(0, MAX_COUNT),
    "stopping.stop": _stop_strings,
    "stopping.stop_token_ids": _token_ids,
    "stopping.ignore_eos": Kind.FREE,
    "stopping.include_stop": Kind.FREE,
    "stopping.time_limit": _time_limit,
    "output": Kind.NESTED,
    "output.mode": _known_value(generation_pb2.OutputOptions.Mode),
    "output.text": Kind.FREE,
    "output.token_ids": Kind.FREE,
    "output.logprobs": Kind.NESTED,
    "output.logprobs.top_n": _top_n,
    "output.logprobs.token_ids": Kind.NESTED,
    "output.logprobs.token_ids.ids": _candidate_ids,
    "output.logprobs.all": _all_candidates,
    "output.prompt_token_ids": Kind.FREE,
    "output.prompt_logprobs": Kind.NESTED,
    "output.prompt_logprobs.top_n": _top_n,
    "output.prompt_logprobs.token_ids": Kind.NESTED,
    "output.prompt_logprobs.token_ids.ids": _candidate_ids,
    "output.prompt_logprobs.all": _all_candidates,
    "output.prompt_logprobs_start": Kind.FREE,  # see frontend.scores
    "output.echo": Kind.FREE,
    "output.skip_special_tokens": Kind.FREE,
    "output.stream_interval": _at_least_one,
    "output.continuous_usage": Kind.FREE,
    "output.timings": Kind.FREE,
    "output.token_bytes": Kind.FREE,
    "cache": Kind.NESTED,
    "cache.salt": _identifier,
    "cache.bypass": Kind.FREE,
    "continuation": Kind.NESTED,
    "continuation.sequences": Kind.NESTED,
    "continuation.sequences.index": Kind.FREE,  # see _check_continuation
    "continuation.sequences.token_ids": Kind.FREE,
}
"""Path of a field, without indexes -> how it is judged. Absent: not built yet."""
