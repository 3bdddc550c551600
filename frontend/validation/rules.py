"""Rules for the value of a single field: what it may be, in words and as a function. Pure.

fields.py assigns rules to fields; docs/limits.md is generated from the words.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from google.protobuf.duration_pb2 import Duration

from frontend.errors import InvalidRequest
from frontend.fetching.urls import FLAG, MediaHosts, NotFetched, is_url
from frontend.media.files import data_of
from frontend.text.regex_automaton import MAX_NODES, Automaton
from frontend.text.regex_syntax import RegexError
from pagewire.limits import (
    ADAPTER_DIGEST_BYTES,
    EMBEDDING_DTYPES,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_GRAMMAR_BYTES,
    MAX_LOGIT_BIAS,
    MAX_MEDIA,
    MAX_TOKEN_IDS,
    MAX_VIDEO_FRAMES,
)
from pagewire.v1 import generation_pb2, prompt_pb2

MAX_ID_BYTES = 256
MAX_STRING_BYTES = 1024
"""Bytes of a stop string or a bad word."""
MAX_STOP_REGEXES = 16
MAX_COUNT = 2**31 - 1
MAX_TOOL_NAME = 128
"""Characters of a tool's name."""
MAX_SECONDS = 366 * 24 * 3600
SHA256_BYTES = 32
LONGEST = 24 * 3600
"""Longest duration, in seconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that requests are validated against: facts of the model, and limits of the server."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    max_sequences: int
    max_stop_strings: int
    max_priority: int = 0
    """With either sign; 0: the engine serves in order of arrival."""
    max_draft_tokens: int = 0
    """0: the engine drafts none."""
    max_logprobs: int = 0
    num_ranks: int = 1
    """Engine cores."""
    has_grammars: bool = False
    """The engine masks tokens by grammars."""
    input_embedding_size: int = 0
    """Elements of a value of Prompt.embeddings; 0: the engine takes token ids alone."""
    takes_images: bool = False
    """The engine has an encoder for images."""
    takes_audio: bool = False
    """It has one for sounds."""
    media_hosts: MediaHosts = field(default=MediaHosts(), compare=False)
    """The hosts from which media are fetched."""
    eos_origins: Mapping[int, str] = field(default_factory=dict, compare=False)
    """The files of the checkpoint that name each of eos_token_ids, where they are known."""


Check = Callable[[Any, Limits], str | None]
"""Returns what is wrong with a field's value; None: nothing."""


@dataclass(frozen=True, slots=True)
class Rule:
    """range: the valid values, for people."""

    range: str
    check: Check

    def __call__(self, value: Any, limits: Limits) -> str | None:
        """Returns what is wrong with the value; None: nothing."""
        return self.check(value, limits)


def outside_vocabulary(ids: Iterable[int], vocab_size: int) -> str | None:
    """Returns what is wrong with token ids of which one is too large; None: nothing."""
    largest = max(ids, default=0)
    if largest < vocab_size:
        return None
    return f"must be below the vocabulary size of {vocab_size}, not {largest}"


def number(low: float, high: float, *, above: bool = False) -> Rule:
    """A number in [low, high], or in (low, high]. NaN is in no interval."""
    interval = f"{'(' if above else '['}{low:.10g}, {high:.10g}]"

    def check(value: float, limits: Limits) -> str | None:
        if (low < value if above else low <= value) and value <= high:
            return None
        return f"must be in {interval}, not {value:.10g}"

    return Rule(interval, check)


def known_value(enum: Any) -> Rule:
    """A value that the enum names."""

    def check(value: int, limits: Limits) -> str | None:
        return None if value in enum.values() else f"has no value {value}"

    return Rule("a value with a name", check)


def strings(most: int) -> Check:
    """At most `most` strings, neither empty nor too long."""

    def check(values: Sequence[str], limits: Limits) -> str | None:
        if len(values) > most:
            return f"must be at most {most} strings, not {len(values)}"
        for value in values:
            if not 1 <= len(value.encode()) <= MAX_STRING_BYTES:
                return f"must be strings of 1 to {MAX_STRING_BYTES} bytes, not {len(value.encode())}"
        return None

    return check


def identifier_problem(value: str, most: int = MAX_ID_BYTES) -> str | None:
    """Returns what is wrong with an id of at most `most` bytes; None: nothing."""
    if len(value.encode()) > most or not value.isprintable():
        return f"must be at most {most} bytes of printable characters"
    return None


def tool_name_problem(value: str) -> str | None:
    """Returns what is wrong with the name of a tool; None: nothing."""
    if re.fullmatch(rf"[A-Za-z0-9_.-]{{1,{MAX_TOOL_NAME}}}", value):
        return None
    return f"must be 1 to {MAX_TOOL_NAME} letters, digits, '_', '.' or '-'"


def priority_problem(value: int, limits: Limits) -> str | None:
    """Returns what is wrong with a priority; None: nothing."""
    most = limits.max_priority
    if -most <= value <= most:
        return None
    if not most:
        return f"must be 0, not {value}: the server serves in order of arrival (--policy fcfs)"
    return f"must be {-most} to {most}, not {value}"


def _draft_tokens(value: int, limits: Limits) -> str | None:
    most = limits.max_draft_tokens
    if value <= most:
        return None
    if not most:
        return f"must be 0, not {value}: the server drafts no tokens (--speculate)"
    return f"must be at most {most}, not {value}: the server drafts no more (--speculate)"


def num_candidates(options: generation_pb2.LogprobOptions, vocab_size: int) -> int:
    """Returns the number of candidates per position."""
    return vocab_size if options.all else options.top_n or len(options.token_ids.ids)


def _stop_regexes(values: Sequence[str], limits: Limits) -> str | None:
    if problem := strings(MAX_STOP_REGEXES)(values, limits):
        return problem
    try:
        Automaton(values)
    except RegexError as error:
        where = f"expression {error.index + 1} " if len(values) > 1 else ""
        return f"is not supported: {where}{error}"
    return None


def _token_ids(values: Sequence[int], limits: Limits) -> str | None:
    if len(values) > limits.vocab_size:
        return f"must be at most {limits.vocab_size} ids, as the vocabulary has, not {len(values)}"
    return outside_vocabulary(values, limits.vocab_size)


def _few_token_ids(values: Sequence[int], limits: Limits) -> str | None:
    if len(values) > MAX_TOKEN_IDS:
        return f"must be at most {MAX_TOKEN_IDS} ids, not {len(values)}; allowed_token_ids may be more"
    return outside_vocabulary(values, limits.vocab_size)


def _logit_bias(values: Any, limits: Limits) -> str | None:
    if len(values) > MAX_LOGIT_BIAS:
        return f"must be at most {MAX_LOGIT_BIAS} tokens, not {len(values)}; allowed_token_ids may be more"
    problem = _token_ids(values, limits)
    if problem is None and not all(-100 <= bias <= 100 for bias in values.values()):
        return "must be in [-100, 100] for each token"
    return problem


def _sequences(value: int, limits: Limits) -> str | None:
    if 1 <= value <= limits.max_sequences:
        return None
    return f"must be 1 to {limits.max_sequences}, not {value}"


def _too_many_candidates(count: int, limits: Limits) -> str | None:
    if count <= limits.max_logprobs:
        return None
    return f"must be at most {limits.max_logprobs} candidates, not {count}"


def _candidate_ids(values: Sequence[int], limits: Limits) -> str | None:
    if problem := _too_many_candidates(len(values), limits):
        return problem
    if len(set(values)) != len(values):
        return "must be different ids"
    return outside_vocabulary(values, limits.vocab_size)


def _time_limit(value: Any, limits: Limits) -> str | None:
    seconds = value.seconds + value.nanos / 1e9
    if 0 < seconds <= MAX_SECONDS and 0 <= value.nanos < 1_000_000_000:
        return None
    return f"must be positive, and at most {MAX_SECONDS} s"


def _rank(value: int, limits: Limits) -> str | None:
    if value < limits.num_ranks:
        return None
    return f"must be below {limits.num_ranks}, the number of engines, not {value}"


def _grammar_text(value: str, limits: Limits) -> str | None:
    size = len(value.encode())
    if 1 <= size <= MAX_GRAMMAR_BYTES:
        return None
    return f"must be 1 to {MAX_GRAMMAR_BYTES} bytes, not {size}"


def _embeddings(value: prompt_pb2.Tensor, limits: Limits) -> str | None:
    size, shape = limits.input_embedding_size, list(value.shape)
    if value.dtype not in EMBEDDING_DTYPES:
        return f"must have one of the dtypes {', '.join(EMBEDDING_DTYPES)}"
    if len(shape) != 2 or not shape[0] or shape[1] != size:
        return f"must have the shape [n, {size}] with n of at least 1, not {shape[:4]}"
    expected = shape[0] * size * EMBEDDING_DTYPES[value.dtype]
    if len(value.data) != expected:
        return f"must have {expected} bytes of data, as dtype and shape say, not {len(value.data)}"
    return None


def _choices(values: Sequence[str], limits: Limits) -> str | None:
    if len(values) > MAX_CHOICES:
        return f"must be at most {MAX_CHOICES} strings, not {len(values)}"
    return None if all(values) else "must not contain an empty string"


def _media_uri(value: str, limits: Limits) -> str | None:
    if data_of(value):
        return None
    if is_url(value):
        if not limits.media_hosts:
            return f"must be a data URI with base64: fetching is not served ({FLAG})"
        try:
            limits.media_hosts.read(value)
        except NotFetched as error:
            return str(error)
        return None
    scheme = value.partition(":")[0]
    if scheme.isalnum() and scheme.lower() != "data":
        return f"must be a data URI with base64: fetching is not served of {scheme[:16]}"
    return "must have a file in base64"


def _video(value: prompt_pb2.VideoFrames, limits: Limits) -> str | None:
    files, seconds = value.files, value.seconds
    if not 2 <= len(files) <= MAX_VIDEO_FRAMES or not all(files):
        return f"must have 2 to {MAX_VIDEO_FRAMES} files, none of them empty"
    if len(seconds) != len(files):
        return f"must have as many seconds as files: {len(files)}, not {len(seconds)}"
    ascend = all(before <= after for before, after in pairwise(seconds))
    if not ascend or not 0 <= seconds[0] <= seconds[-1] <= MAX_SECONDS:
        return f"must have seconds in ascending order, from 0 to {MAX_SECONDS}"
    return None


AT_LEAST_ONE = number(1, MAX_COUNT)
FILE = Rule("1 byte or more", lambda value, limits: None if value else "must not be empty")
MEDIA_URI = Rule(f"a data URI with base64; with {FLAG}, a URL of such a host", _media_uri)
VIDEO = Rule(
    f"2 to {MAX_VIDEO_FRAMES} files, and as many seconds in ascending order, 0 to {MAX_SECONDS}", _video
)
MEDIA_DIGEST = Rule(
    "a SHA-256 digest",
    lambda value, limits: None if len(value) == SHA256_BYTES else f"must have {SHA256_BYTES} bytes",
)
MEDIA_DIGESTS = Rule(
    f"SHA-256 digests, at most {MAX_MEDIA}",
    lambda values, limits: (
        None
        if len(values) <= MAX_MEDIA and all(len(value) == SHA256_BYTES for value in values)
        else f"must be at most {MAX_MEDIA} digests of {SHA256_BYTES} bytes"
    ),
)
IDENTIFIER = Rule(f"at most {MAX_ID_BYTES} bytes, printable", lambda value, limits: identifier_problem(value))
DIGEST = Rule(
    f"empty, or {ADAPTER_DIGEST_BYTES} bytes",
    lambda value, limits: (
        None
        if len(value) in (0, ADAPTER_DIGEST_BYTES)
        else f"must be of {ADAPTER_DIGEST_BYTES} bytes, not {len(value)}"
    ),
)
DRAFT_TOKENS = Rule("0 to Limits.max_draft_tokens", _draft_tokens)
PRIORITY = Rule("Limits.max_priority with either sign; 0 under --policy fcfs", priority_problem)
RANK = Rule("below the number of engines", _rank)
SEQUENCES = Rule("1 to Limits.max_sequences", _sequences)
BAD_WORDS = Rule(
    f"at most {MAX_BAD_WORDS} strings of 1 to {MAX_STRING_BYTES} bytes, {MAX_BAD_WORD_TOKENS} tokens each",
    strings(MAX_BAD_WORDS),
)
STOP_STRINGS = Rule(
    f"at most Limits.max_stop_strings, of 1 to {MAX_STRING_BYTES} bytes each",
    lambda values, limits: strings(limits.max_stop_strings)(values, limits),
)
STOP_REGEXES = Rule(
    f"at most {MAX_STOP_REGEXES}, of 1 to {MAX_STRING_BYTES} bytes each, {MAX_NODES} characters and classes "
    "in all, repetition unfolded",
    _stop_regexes,
)
TOKEN_IDS = Rule("ids of the vocabulary, at most as many as it has", _token_ids)
FEW_TOKEN_IDS = Rule(f"ids of the vocabulary, at most {MAX_TOKEN_IDS}", _few_token_ids)
LOGIT_BIAS = Rule(f"[-100, 100] by ids of the vocabulary, at most {MAX_LOGIT_BIAS}", _logit_bias)
TOP_N = Rule("0 to Limits.max_logprobs", _too_many_candidates)
CANDIDATE_IDS = Rule("at most Limits.max_logprobs different ids of the vocabulary", _candidate_ids)
ALL_CANDIDATES = Rule(
    "where the vocabulary is within Limits.max_logprobs (--max-logprobs -1)",
    lambda value, limits: _too_many_candidates(limits.vocab_size if value else 0, limits),
)
TOOL_NAME = Rule(
    f"1 to {MAX_TOOL_NAME} of A-Z, a-z, 0-9, _, ., -", lambda value, limits: tool_name_problem(value)
)
TRUE = Rule("true", lambda value, limits: None if value else "must be true")
GRAMMAR_TEXT = Rule(f"1 to {MAX_GRAMMAR_BYTES} bytes", _grammar_text)
EMBEDDINGS = Rule(
    f"[n, size of the model's embeddings] of {', '.join(EMBEDDING_DTYPES)}, finite",
    lambda value, limits: _embeddings(value, limits) if limits.input_embedding_size else None,
)
CHOICES = Rule(f"1 to {MAX_CHOICES} strings, not empty, {MAX_GRAMMAR_BYTES} bytes in all", _choices)
BACKEND = Rule(
    "llguidance, or empty",
    lambda value, limits: None if value in ("", "llguidance") else "must be llguidance, or empty",
)
TIME_LIMIT = Rule(f"above 0, at most {MAX_SECONDS} s", _time_limit)


def computes_prompt_only(stopping: generation_pb2.StoppingCriteria) -> bool:
    """Returns whether nothing is generated: the prompt is computed, for log-probabilities or the cache."""
    return stopping.HasField("max_tokens") and not stopping.max_tokens


def seconds_of(duration: Duration, path: str) -> float:
    """Returns a duration in seconds. Raises InvalidRequest for a negative one or one above a day."""
    seconds = duration.seconds + duration.nanos / 1e9
    if not 0 <= seconds <= LONGEST:
        raise InvalidRequest({path: f"must be 0 to {LONGEST} s"})
    return seconds
