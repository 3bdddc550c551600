"""From AddRequest to Request: the engine core's own validation.

Frontends have checked all of this and more, with messages for their clients. The core checks it again, so
that no message on a socket can raise in the step loop or in the worker.
"""

from array import array
from collections.abc import Callable, Collection, Iterable
from math import isfinite
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from engine_core.context import Limits
from engine_core.errors import Refused
from engine_core.intake.beam_validation import read_beams
from engine_core.intake.embedding_validation import check_embeddings
from engine_core.intake.media_validation import media_contents, read_media
from engine_core.quarantine.blame import key_of
from engine_core.request import MAX_DRAFTS, History, PendingPromptLogprobs, Request, RequestOwner
from engine_core.step.plan import AdapterUse, MediaItem, RowParameters
from pagewire.checkpoints.heads import VOCABULARY
from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_ALL,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MAX,
    AddRequest,
    Pooling,
    PoolingType,
)
from pagewire.ipc.columns import unpack_u32_array
from pagewire.ipc.logprob_columns import MAX_PROMPT_CANDIDATES
from pagewire.limits import (
    ADAPTER_DIGEST_BYTES,
    MAX_BAD_SPELLINGS,
    MAX_BAD_WORD_TOKENS,
    MAX_COMPILED_BYTES,
    MAX_LOGIT_BIAS,
    MAX_TOKEN_IDS,
    MAX_VECTOR_VALUES,
    is_adapter_name,
)
from pagewire.telemetry.tracing import trace_id_of
from pagewire.v1.generation_pb2 import LogprobOptions, SamplingParams, StoppingCriteria

M = TypeVar("M", bound=Message)


MAX_TENANT_BYTES = 256
MAX_ID_BYTES = 1024
"""Length of ids, which the core keeps and logs. Those that frontends generate are shorter."""
MAX_DIGEST_BYTES = 64
MAX_CHOSEN_LOGITS = 8
"""Of Pooling.token_ids."""
MAX_DISCONNECT_GRACE_MS = 60_000
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
"""Range of a tenant's weight."""


def make_request(message: AddRequest, frontend: bytes, arrival: float, limits: Limits) -> Request:
    """Returns the request that a message describes. Raises Refused."""
    _check_names(message, limits)
    prompt = _prompt(message, limits)
    n = _check_sampling(message.sampling, limits)
    _check_stopping(message.stopping, limits)
    if message.prompt_only and message.stopping.max_tokens != 1:
        raise Refused("stopping.max_tokens", "must be 1 where the prompt alone is computed")
    _check_bad_words(message, limits)
    _check_grammar(message, limits)
    _check_choice(message, limits)
    _check_candidates("output.logprobs", message.logprobs, limits)
    delivered = read_delivered(message, len(prompt), n, limits)
    prompt_logprobs = _pending_prompt_logprobs(message, len(prompt), delivered, limits)
    beams = read_beams(message, len(prompt), limits)
    pooling = _pooling(message, limits)
    media = read_media(message, len(prompt), limits)
    contents = check_embeddings(message, len(prompt), limits) or media_contents(media)
    adapter = _adapter(message, len(prompt), limits)
    if adapter is not None:
        contents[adapter.start] = contents.get(adapter.start, b"") + adapter.digest
    stopping = message.stopping
    eos = frozenset[int]() if stopping.ignore_eos else limits.eos_token_ids
    stop = frozenset(stopping.stop_token_ids)
    time_limit = stopping.time_limit if stopping.HasField("time_limit") else None
    request = Request(
        frontend=frontend,
        handle=message.handle,
        request_id=message.request_id,
        group=message.group,
        prompt=prompt,
        parameters=_row_parameters(message, eos | stop, pooling, adapter, media),
        max_tokens=stopping.max_tokens,
        max_model_len=limits.max_model_len + message.prompt_only,
        eos_token_ids=eos,
        stop_token_ids=stop,
        arrival=arrival,
        key=key_of(message.tenant, message.request_id),
        priority=message.priority,
        tenant=message.tenant,
        trace_id=trace_id_of(message.traceparent),
        tenant_weight=_weight(message),
        cache_salt=message.cache_salt,
        cache_bypass=message.cache_bypass,
        holder=message.holder,
        content_hashes=contents,
        max_drafts=_max_drafts(message),
        num_vector_values=_num_vector_values(message, limits),
        prompt_logprobs=prompt_logprobs,
        time_limit_at=_time(arrival, time_limit),
        deadline_at=deadline_of(message, arrival),
        beam_search=beams,
        history=History(age=1e-6 * message.age_us),
        owner=RequestOwner(
            submitted=submitted_at(message, arrival),
            abort_at=deadline_of(message, arrival),
            disconnect_grace=disconnect_grace_of(message),
            content=message.content_digest,
        ),
    )
    request.start_sequences(n if beams is None else beams.width, delivered)
    return request


def disconnect_grace_of(message: AddRequest) -> float:
    """Returns the seconds for which the request goes on without a call."""
    return 1e-3 * min(message.disconnect_grace_ms, MAX_DISCONNECT_GRACE_MS)


def submitted_at(message: AddRequest, arrival: float) -> float:
    """Returns when the request arrived at its frontend, in seconds on the core's clock."""
    return arrival - 1e-6 * message.age_us


def deadline_of(message: AddRequest, arrival: float) -> float | None:
    """Returns when the client gives up, in seconds on the core's clock; None: never."""
    return _time(arrival, message.deadline if message.HasField("deadline") else None)


def _check_names(message: AddRequest, limits: Limits) -> None:
    """Refuses invalid ids, tenants and priorities."""
    if not message.request_id:
        raise Refused("request_id", "is empty")
    for name, value in (("request_id", message.request_id), ("group", message.group)):
        if is_too_long(value):
            raise Refused(name, f"must be at most {MAX_ID_BYTES} bytes")
    if len(message.content_digest) > MAX_DIGEST_BYTES:
        raise Refused("content_digest", f"must be at most {MAX_DIGEST_BYTES} bytes")
    if abs(message.priority) > limits.max_priority:
        raise Refused("priority", f"must be {-limits.max_priority} to {limits.max_priority}")
    if len(message.tenant.encode()) > MAX_TENANT_BYTES:
        raise Refused("tenant", f"must be at most {MAX_TENANT_BYTES} bytes")


def is_too_long(name: str) -> bool:
    """Returns whether an id is longer than any valid one."""
    return len(name) > MAX_ID_BYTES or len(name.encode()) > MAX_ID_BYTES


def _weight(message: AddRequest) -> float:
    """Returns the weight of the tenant that the message names; 0: none."""
    weight = message.tenant_terms.weight
    if weight and not MIN_WEIGHT <= weight <= MAX_WEIGHT:  # nor is NaN
        raise Refused("tenant", f"must have a weight of {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    return weight


def _row_parameters(
    message: AddRequest,
    stops: frozenset[int],
    pooling: Pooling | None,
    adapter: AdapterUse | None,
    media: tuple[MediaItem, ...],
) -> RowParameters:
    return RowParameters(
        sampling=_kept(message.sampling),
        min_tokens=message.stopping.min_tokens,
        stop_token_ids=tuple(sorted(stops)),
        bad_words=tuple(tuple(word.ids) for word in message.bad_words),
        logprobs=_kept(message.logprobs) if message.HasField("logprobs") else None,
        grammar=message.grammar,
        pooling=None if pooling is None else _kept(pooling),
        embeddings=_kept(message.embeddings) if message.HasField("embeddings") else None,
        adapter=adapter,
        media=media,
    )


def _prompt(message: AddRequest, limits: Limits) -> "array[int]":
    prompt = _column("prompt", message.prompt_token_ids)
    if not prompt:
        raise Refused("prompt", "is empty")
    if len(prompt) >= limits.max_model_len + message.prompt_only:
        raise Refused(
            "prompt",
            f"of {len(prompt)} tokens leaves no room for output in a context of {limits.max_model_len}",
            "CONTEXT_LENGTH_EXCEEDED",
        )
    _check_tokens("prompt", prompt, limits)
    return prompt


_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda x: x >= 0, "must be at least 0"),
    "top_p": (lambda x: 0 < x <= 1, "must be above 0 and at most 1"),
    "min_p": (lambda x: 0 <= x <= 1, "must be 0 to 1"),
    "typical_p": (lambda x: 0 < x <= 1, "must be above 0 and at most 1"),
    "frequency_penalty": (lambda _: True, ""),
    "presence_penalty": (lambda _: True, ""),
    "repetition_penalty": (lambda x: x > 0, "must be above 0"),
}


def _check_sampling(sampling: SamplingParams, limits: Limits) -> int:
    """Refuses parameters that cannot be sampled with; returns n."""
    for name in (*_RANGES, "top_k", "seed", "n"):
        if not sampling.HasField(name):
            raise Refused(f"sampling.{name}", "is not resolved")
    for name, (allowed, text) in _RANGES.items():
        value = getattr(sampling, name)
        if not isfinite(value):
            raise Refused(f"sampling.{name}", "must be a finite number")
        if not allowed(value):
            raise Refused(f"sampling.{name}", text)
    if not 1 <= sampling.n <= limits.max_num_seqs:
        raise Refused("sampling.n", f"must be 1 to {limits.max_num_seqs}")
    if sampling.HasField("best_of"):
        raise Refused("sampling.best_of", "is not resolved")  # the frontend chooses among n
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        raise Refused("sampling.logit_bias", f"must be at most {MAX_LOGIT_BIAS} tokens")
    if not all(map(isfinite, sampling.logit_bias.values())):
        raise Refused("sampling.logit_bias", "must be finite numbers")
    _check_tokens("sampling.logit_bias", sampling.logit_bias, limits)
    _check_tokens("sampling.allowed_token_ids", sampling.allowed_token_ids, limits)
    _check_few_tokens("sampling.bad_token_ids", sampling.bad_token_ids, limits)
    return sampling.n


def _check_stopping(stopping: StoppingCriteria, limits: Limits) -> None:
    for name in ("max_tokens", "min_tokens"):
        if not stopping.HasField(name):
            raise Refused(f"stopping.{name}", "is not resolved")
    if stopping.min_tokens > stopping.max_tokens:
        raise Refused("stopping.min_tokens", "is more than max_tokens")
    _check_few_tokens("stopping.stop_token_ids", stopping.stop_token_ids, limits)


def _check_bad_words(message: AddRequest, limits: Limits) -> None:
    if len(message.bad_words) > MAX_BAD_SPELLINGS:
        raise Refused("sampling.bad_words", f"has more than {MAX_BAD_SPELLINGS} words")
    for word in message.bad_words:
        if not word.ids:
            raise Refused("sampling.bad_words", "has a word without tokens")
        if len(word.ids) > MAX_BAD_WORD_TOKENS:
            raise Refused("sampling.bad_words", f"has a word of more than {MAX_BAD_WORD_TOKENS} tokens")
        _check_tokens("sampling.bad_words", word.ids, limits)


def _max_drafts(message: AddRequest) -> int:
    """Returns how many tokens may be drafted for a row. A row with a grammar has the mask of one position;
    one that pools samples nothing; with embeddings, drafters do not know the prompt."""
    if message.grammar or message.HasField("pooling"):
        return 0
    if message.HasField("embeddings") or message.adapter.virtual_tokens:
        return 0
    return message.max_draft_tokens if message.HasField("max_draft_tokens") else MAX_DRAFTS


def _check_grammar(message: AddRequest, limits: Limits) -> None:
    if not message.grammar:
        return
    path = "structured_output"
    if not limits.has_grammars:
        raise Refused(path, "needs a worker that masks tokens by grammars")
    if len(message.grammar.encode()) > MAX_COMPILED_BYTES:
        raise Refused(path, f"has a grammar of more than {MAX_COMPILED_BYTES} bytes")
    if message.sampling.allowed_token_ids or message.stopping.ignore_eos:
        raise Refused(path, "cannot be combined with allowed_token_ids or ignore_eos")


def _check_choice(message: AddRequest, limits: Limits) -> None:
    """Refuses parameters that forbid every token: there would be nothing to sample."""
    sampling, stopping = message.sampling, message.stopping
    forbidden = set(sampling.bad_token_ids)
    forbidden.update(word.ids[0] for word in message.bad_words if len(word.ids) == 1)
    if stopping.min_tokens:
        forbidden.update(stopping.stop_token_ids)
        if not stopping.ignore_eos:
            forbidden |= limits.eos_token_ids
    if sampling.allowed_token_ids and forbidden.issuperset(sampling.allowed_token_ids):
        raise Refused("sampling.allowed_token_ids", "are all forbidden by other parameters")
    if len(forbidden) >= limits.vocab_size:
        raise Refused("sampling.bad_token_ids", "leave no token to choose")


def _check_candidates(path: str, options: LogprobOptions, limits: Limits) -> int:
    """Refuses candidates that are not in the vocabulary; returns their number."""
    if options.top_n > limits.vocab_size:
        raise Refused(f"{path}.top_n", f"is more than the vocabulary of {limits.vocab_size}")
    _check_tokens(f"{path}.token_ids", options.token_ids.ids, limits)
    if len(options.token_ids.ids) > limits.vocab_size:
        raise Refused(f"{path}.token_ids", f"are more than the vocabulary of {limits.vocab_size}")
    return limits.vocab_size if options.all else options.top_n or len(options.token_ids.ids)


def _pending_prompt_logprobs(
    message: AddRequest, prompt_len: int, delivered: "dict[int, array[int]]", limits: Limits
) -> PendingPromptLogprobs | None:
    """Returns the log-probabilities of the prompt that are to be returned."""
    if not message.HasField("prompt_logprobs"):
        return None
    path = "output.prompt_logprobs"
    count = _check_candidates(path, message.prompt_logprobs, limits)
    start = max(message.prompt_logprobs_start, 1)
    if start > prompt_len or start == prompt_len > 1:
        raise Refused("output.prompt_logprobs_start", f"is not below the prompt's length of {prompt_len}")
    if delivered:
        raise Refused(path, "come before the first output, and some was delivered")
    if (prompt_len - start) * count > MAX_PROMPT_CANDIDATES:
        raise Refused(path, f"are more than {MAX_PROMPT_CANDIDATES} candidates")
    return PendingPromptLogprobs(_kept(message.prompt_logprobs), start) if start < prompt_len else None


def _pooling(message: AddRequest, limits: Limits) -> Pooling | None:
    """Returns how a request pools, if it does."""
    if not message.HasField("pooling"):
        if limits.whole_prompts:
            raise Refused("model", "is an encoder, which generates no text", "FEATURE_UNSUPPORTED")
        return None
    pooling = message.pooling
    if not limits.embedding_size:
        raise Refused("pooling", "needs a worker that pools", "FEATURE_UNSUPPORTED")
    if not pooling.type or pooling.type not in PoolingType.values():
        raise Refused("pooling.type", "is not known")
    sizes = (limits.embedding_size, *limits.head_sizes)
    size = sizes[pooling.head] if pooling.head < len(sizes) else 0
    if not size:
        raise Refused("pooling.head", "is not one of the worker's", "FEATURE_UNSUPPORTED")
    if pooling.head == VOCABULARY and pooling.type != POOLING_TYPE_MAX:
        raise Refused("pooling.head", "gives logits, of which the largest are pooled")
    ids = pooling.token_ids
    if ids and (pooling.type != POOLING_TYPE_LAST or pooling.head or pooling.dimensions or pooling.normalize):
        raise Refused("pooling.token_ids", "have logits, which nothing more is made of")
    if len(ids) > MAX_CHOSEN_LOGITS or max(ids, default=0) >= limits.vocab_size:
        raise Refused("pooling.token_ids", f"must be at most {MAX_CHOSEN_LOGITS} ids of the vocabulary")
    if 4 * pooling.second_text >= len(message.prompt_token_ids):
        raise Refused("pooling.second_text", "is not below the length of the prompt")
    if pooling.dimensions > size:
        raise Refused("dimensions", f"must be at most {size}")
    num_values = _num_vector_values(message, limits)
    if num_values > MAX_VECTOR_VALUES:
        raise Refused("inputs", f"has vectors of {num_values} elements; at most {MAX_VECTOR_VALUES} fit")
    if message.sampling.n != 1 or message.stopping.max_tokens != 1:
        raise Refused("pooling", "needs n = 1 and max_tokens = 1")
    named = ("sampling.beam_search", message.sampling.HasField("beam_search")), ("grammar", message.grammar)
    logprobs = tuple((name, message.HasField(name)) for name in ("logprobs", "prompt_logprobs"))
    for name, given in (*named, *logprobs, ("delivered", message.delivered)):
        if given:
            raise Refused(name, "cannot be combined with pooling")
    return pooling


def _num_vector_values(message: AddRequest, limits: Limits) -> int:
    """Returns the elements of all vectors of a request that pools; 0 for others."""
    if not message.HasField("pooling"):
        return 0
    pooling = message.pooling
    size = pooling.dimensions or (limits.embedding_size, *limits.head_sizes)[pooling.head]
    return size * len(message.prompt_token_ids) // 4 if pooling.type == POOLING_TYPE_ALL else size


def _adapter(message: AddRequest, prompt_len: int, limits: Limits) -> AdapterUse | None:
    """Returns the adapter of a request, if it has one."""
    if not message.HasField("adapter"):
        return None
    adapter = message.adapter
    if limits.adapters_caveat:
        text = f"needs a worker that takes adapters: {limits.adapters_caveat}"
        raise Refused("adapter", text, "FEATURE_UNSUPPORTED")
    if len(adapter.digest) != ADAPTER_DIGEST_BYTES or not is_adapter_name(adapter.name):
        raise Refused("adapter", "is not resolved")
    if adapter.start >= prompt_len:
        raise Refused(
            "adapter", f"adapts from position {adapter.start}, beyond a prompt of {prompt_len} tokens"
        )
    if count := adapter.virtual_tokens:
        if not limits.input_embedding_size:
            raise Refused(
                "adapter", "has virtual tokens: the engine takes token ids alone", "FEATURE_UNSUPPORTED"
            )
        if adapter.start or count >= prompt_len:
            raise Refused("adapter", f"has {count} virtual tokens, of a prompt of {prompt_len}")
        for field in ("embeddings", "prompt_logprobs", "pooling"):
            if message.HasField(field):
                raise Refused("adapter", f"has virtual tokens, which cannot be combined with {field}")
    return AdapterUse(adapter.name, adapter.source, adapter.digest, adapter.start, count)


def _kept(part: M) -> M:
    """Returns a copy: a part of a message would keep all of it, and so the prompt, in memory."""
    copy = type(part)()
    copy.CopyFrom(part)
    return copy


def read_delivered(message: AddRequest, prompt_len: int, n: int, limits: Limits) -> "dict[int, array[int]]":
    """Returns the output that the client already has, by sequence index. Raises Refused."""
    path = "continuation.sequences"
    delivered: dict[int, array[int]] = {}
    for part in message.delivered:
        if part.index >= n or part.index in delivered:
            raise Refused(path, f"has index {part.index}, which is not below n = {n} or is there twice")
        output = _column(path, part.token_ids)
        _check_tokens(path, output, limits)
        if len(output) > message.stopping.max_tokens:
            raise Refused(path, f"has {len(output)} tokens, more than max_tokens")
        if prompt_len + len(output) > limits.max_model_len:
            raise Refused(path, "do not fit into the context", "CONTEXT_LENGTH_EXCEEDED")
        delivered[part.index] = output
    return {index: output for index, output in delivered.items() if output}


def _column(path: str, column: bytes) -> "array[int]":
    try:
        return unpack_u32_array(column)
    except ValueError:
        raise Refused(path, "is not a column of token ids") from None


def _check_few_tokens(path: str, token_ids: Collection[int], limits: Limits) -> None:
    if len(token_ids) > MAX_TOKEN_IDS:
        raise Refused(path, f"must be at most {MAX_TOKEN_IDS} tokens")
    _check_tokens(path, token_ids, limits)


def _check_tokens(path: str, token_ids: Iterable[int], limits: Limits) -> None:
    highest = max(token_ids, default=0)
    if highest >= limits.vocab_size:
        raise Refused(path, f"has token {highest}, which is not in the vocabulary of {limits.vocab_size}")


def _time(arrival: float, after: Duration | None) -> float | None:
    """Returns a time on the core's clock; a negative duration has passed already."""
    return None if after is None else arrival + max(0.0, after.seconds + after.nanos * 1e-9)
