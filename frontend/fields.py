"""The fields of requests: for each that is built, how its value is judged. Pure.

A field that a client sets and that has no entry in FIELDS is refused by its path (validation.py). So a field
that is added to the protos is refused until somebody builds it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pagewire.beam_limits import MAX_LENGTH_PENALTY
from pagewire.v1 import generation_pb2, prompt_pb2

MAX_ID_BYTES = 256
MAX_BAD_WORDS = 128
MAX_STRING_BYTES = 1024
"""Of a stop string or a bad word."""
MAX_COUNT = 2**31 - 1
MAX_SECONDS = 366 * 24 * 3600


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


def outside_vocabulary(ids: Iterable[int], vocab_size: int) -> str | None:
    """What is wrong with token ids of which one is too large; None: nothing."""
    largest = max(ids, default=0)
    if largest < vocab_size:
        return None
    return f"must be below the vocabulary size of {vocab_size}, not {largest}"


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


def priority_problem(value: int, limits: Limits) -> str | None:
    """What is wrong with a priority; None: nothing."""
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
    return identifier_problem(value)


def identifier_problem(value: str, most: int = MAX_ID_BYTES) -> str | None:
    """What is wrong with an id of at most so many bytes; None: nothing."""
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
    "priority": priority_problem,
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
    "continuation.sequences.index": Kind.FREE,  # see validation.py
    "continuation.sequences.token_ids": Kind.FREE,
}
"""Path of a field, without indexes -> how it is judged. Absent: not built yet."""
