"""A request as the frontend runs it, and the two things that follow from it: the message for the engine core,
and the stream for the client. Pure."""

import secrets
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

from frontend.answers.answer import Answer, AnswerContext
from frontend.auth.caller import Caller
from frontend.call.call import Call
from frontend.engine.logprobs import PromptScores
from frontend.media.files import file_of, media_of
from frontend.model.info import DEFAULT, ModelInfo
from frontend.prompts.prompt_encoding import TokenizedPrompt
from frontend.streams.pacing import DeliveryPacer
from frontend.streams.request_adapter import CallAdapter
from frontend.streams.sequence import OutputFields, RepetitionDetector, Sequence
from frontend.streams.stream import DeliveryMode, Header, Stream
from frontend.telemetry.timings import RequestTimings
from frontend.text.detokenizer import Detokenizer
from frontend.text.stop_strings import StopMatcher, StopStrings
from frontend.validation.defaults import Resolved
from frontend.validation.rules import Limits, computes_prompt_only
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2, prompt_pb2

CUMULATIVE = generation_pb2.OutputOptions.MODE_CUMULATIVE
FINAL = generation_pb2.OutputOptions.MODE_FINAL
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Identifies a request among attempts and tenants.

    A client that does not know what has become of a request submits it again, under the same id, at any
    frontend. The same content under the same id is the same request. Its seed is the same too: one that the
    client leaves to the server is a function of the id, so that the tokens are those of the first submit in
    any case.
    """

    request_id: str
    """The client's, or one that the server has drawn."""
    engine_id: str
    """The same, within its tenant."""
    seed: int
    content: bytes
    """Digest of what determines the answer, equal for every attempt; empty: no call can take it over."""
    tenant: str
    """The owner of the request."""


def identify(
    request: generation_pb2.GenerateRequest,
    caller: Caller,
    tenant: str,
    *,
    default_seed: int = -1,
    is_pooled: bool = False,
    adapter: bytes = b"",
) -> RequestIdentity:
    """Returns the identity of a validated request. tenant: its owner. default_seed: of a request without one;
    -1: one of its own. is_pooled: it ends with a vector, which is sent once: it has no digest.
    adapter: digest of its adapter, whose name may be another's later."""
    request_id = request.request_id or secrets.token_hex(16)
    engine_id = caller.scope(request_id)
    if request.sampling.HasField("seed"):
        seed = request.sampling.seed
    else:
        seed = _seed_of(request, engine_id) if default_seed < 0 else default_seed
    content = b"" if is_pooled else _digest(request, seed, tenant, adapter)
    return RequestIdentity(request_id, engine_id, seed, content, tenant)


def _seed_of(request: generation_pb2.GenerateRequest, engine_id: str) -> int:
    if not request.request_id:
        return secrets.randbits(64)
    return int.from_bytes(blake2b(engine_id.encode(), digest_size=8, person=b"seed").digest(), "little")


def _digest(request: generation_pb2.GenerateRequest, seed: int, tenant: str, adapter: bytes) -> bytes:
    """Leaves out what differs between attempts: what was delivered, the time that is left, the place."""
    content = generation_pb2.GenerateRequest()
    content.CopyFrom(request)
    for name in ("request_id", "continuation", "routing", "speculation"):
        content.ClearField(name)
    content.sampling.seed, content.tenant = seed, tenant
    content.stopping.ClearField("time_limit")
    content.stopping.SetInParent()
    for _, media in media_of(content.prompt, ""):  # bytes or a URI with them, and whatever they are called
        media.CopyFrom(prompt_pb2.Media(data=blake2b(file_of(media)).digest()))
    return blake2b(content.SerializeToString(deterministic=True) + adapter, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class CallMode:
    """How an RPC runs requests, besides what the request says.

    one_message: all output in one message, regardless of the request's mode.
    find:        where there are several cores, the request goes to the one that runs it already, if its
                 client chose its id; a continuation always does.
    resumable:   if its client chose its id, and is gone, it goes on for --disconnect-grace, as does one with
                 `find`.
    pooling:     it ends with a vector, and no other call can take it over; None: it generates.
    adapter:     that of all requests of one call; None: each request says which.
    prompt_len:  tokens that the client calls the prompt; those behind them are scored, as if they had been
                 generated; None: all.
    """

    one_message: bool = False
    find: bool = False
    resumable: bool = False
    pooling: engine_pb2.Pooling | None = None
    adapter: engine_pb2.NamedAdapter | None = None
    prompt_len: int | None = None

    def finds(self, request: generation_pb2.GenerateRequest) -> bool:
        """Returns whether the core that runs the request is looked for."""
        return bool(request.request_id) and (self.find or request.HasField("continuation"))

    def keeps(self, request: generation_pb2.GenerateRequest) -> bool:
        """Returns whether the request goes on for a while without its client."""
        return bool(request.request_id) and (self.resumable or self.finds(request))


_PROMPT_ONLY = generation_pb2.StoppingCriteria(max_tokens=1, min_tokens=0, ignore_eos=True)
"""A core samples one token behind each prompt; a stream drops it (OutputFields.prompt_only)."""
STREAMING = CallMode()
ONE_MESSAGE = CallMode(one_message=True)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A validated request, its prompt as tokens, and its fields with the model's defaults.

    call: with the trace context that the core gets.
    """

    request: generation_pb2.GenerateRequest
    call: Call
    mode: CallMode
    identity: RequestIdentity
    limits: Limits
    model: ModelInfo
    prompt: TokenizedPrompt
    resolved: Resolved
    adapter: CallAdapter | None = None
    media_digests: Items[bytes] = ()
    """SHA-256 of the media that were fetched, in order."""

    def without_media(self) -> "RequestSpec":
        """Returns the request without the media of its prompt, which may be large."""
        return replace(self, prompt=replace(self.prompt, packed_media=b""))

    @property
    def final_only(self) -> bool:
        """True when all output leaves in one message."""
        return self.mode.one_message or self.request.output.mode == FINAL or self.resolved.is_choice

    @property
    def prompt_only(self) -> bool:
        """True when nothing is generated."""
        return computes_prompt_only(self.resolved.stopping)

    def prompt_scores(self) -> PromptScores | None:
        """Returns an empty container for the requested log-probabilities of the prompt; None: none are
        requested. A continuation needs none: the client got them with the first message of the broken
        stream."""
        continued = any(sequence.token_ids for sequence in self.request.continuation.sequences)
        if continued or not self.request.output.HasField("prompt_logprobs"):
            return None
        return PromptScores(self.request.output.prompt_logprobs_start, len(self.prompt.token_ids))


def to_engine(
    spec: RequestSpec, bad_words: Items[Items[int]] = (), grammar: str = ""
) -> engine_pb2.AddRequest:
    """Returns the message for the core, without what depends on the time: deadline and age; and without
    media, which are packed."""
    request, resolved, trace = spec.request, spec.resolved, spec.call.trace
    wants_logprobs = resolved.is_choice or request.output.HasField("logprobs")
    message = engine_pb2.AddRequest(
        request_id=spec.identity.engine_id,
        content_digest=spec.identity.content,
        prompt_token_ids=pack_u32(spec.prompt.token_ids),
        sampling=resolved.sampling,
        stopping=_PROMPT_ONLY if spec.prompt_only else resolved.stopping,
        prompt_only=spec.prompt_only,
        priority=request.priority,
        cache_salt=request.cache.salt,
        cache_bypass=request.cache.bypass,
        logprobs=request.output.logprobs if wants_logprobs and not spec.prompt_only else None,
        grammar="" if spec.prompt_only else grammar,
        pooling=spec.mode.pooling,
        embeddings=spec.prompt.embeddings,
        tenant=spec.identity.tenant,
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
        adapter=None if spec.adapter is None else spec.adapter.reference(),
    )
    for word in bad_words:
        message.bad_words.add(ids=word)
    if request.speculation.HasField("max_draft_tokens"):
        message.max_draft_tokens = request.speculation.max_draft_tokens
    scores = spec.prompt_scores()
    if scores is not None and scores.missing is not None:
        message.prompt_logprobs.CopyFrom(request.output.prompt_logprobs)
        message.prompt_logprobs_start = scores.missing
    terms = spec.call.caller.terms
    if terms is not None:
        message.tenant_terms.weight = terms.weight
        message.tenant_terms.max_requests = terms.max_requests
        message.tenant_terms.max_tokens_per_minute = terms.max_tokens_per_minute
        message.tenant_terms.max_sequences = terms.max_sequences
    return message


def to_stream(
    spec: RequestSpec,
    answers: AnswerContext | None,
    timings: RequestTimings,
    pacer: DeliveryPacer | None = None,
) -> Stream:
    """Returns the stream for the client. answers: None: they are text alone."""
    output, resolved = spec.request.output, spec.resolved
    delivery = DeliveryMode(
        final_only=spec.final_only,
        interval=output.stream_interval if output.HasField("stream_interval") else 1,
        continuous_usage=output.continuous_usage,
        timings=output.timings,
        num_returned=resolved.num_returned if resolved.is_choice else None,
    )
    return Stream(_header(spec), delivery, _sequences(spec, answers), timings, pacer)


def _header(spec: RequestSpec) -> Header:
    output, token_bytes = spec.request.output, spec.model.tokenizer.token_bytes
    shown = spec.prompt.token_ids if output.prompt_token_ids else ()
    return Header(
        request_id=spec.identity.request_id,
        model=spec.model.name if spec.adapter is None else spec.adapter.adapter.name,
        adapter=None if spec.adapter is None else spec.adapter.shown(),
        seed=spec.resolved.sampling.seed,
        prompt_tokens=len(spec.prompt.token_ids),
        media_tokens=spec.prompt.num_media_tokens,
        hears=bool(spec.model.audio),
        media_digests=spec.media_digests,
        prompt_token_ids=shown,
        prompt_token_bytes=tuple(map(token_bytes, shown if output.token_bytes else ())),
        prompt_scores=spec.prompt_scores(),
        token_bytes=token_bytes if output.token_bytes else None,
        num_truncated=spec.prompt.num_truncated,
        parameters=partial(effective_parameters, spec),
        shows_parameters=output.parameters,
    )


def effective_parameters(spec: RequestSpec) -> generation_pb2.EffectiveParameters:
    """Returns what a request runs with, where each value is from, and the tokens that end its sequences."""
    resolved, stops = spec.resolved, spec.request.stopping.stop_token_ids
    found = generation_pb2.EffectiveParameters(sampling=resolved.sampling, stopping=resolved.stopping)
    for part, asked in (("sampling", spec.request.sampling), ("stopping", spec.request.stopping)):
        own = {field.name for field, _ in asked.ListFields()}
        for field, value in getattr(found, part).ListFields():
            origin = "request" if field.name in own else _origin_of_default(spec, part, field.name, value)
            found.origins[f"{part}.{field.name}"] = origin
    if not resolved.stopping.ignore_eos:
        found.ends.extend(spec.model.ends(spec.limits))
    found.ends.extend(spec.model.end(token, "stopping.stop_token_ids") for token in sorted(set(stops)))
    return found


def _origin_of_default(spec: RequestSpec, part: str, name: str, value: object) -> str:
    """Returns where a value is from that the request does not state."""
    if part == "stopping":
        return DEFAULT
    if name == "n" and spec.request.sampling.HasField("best_of"):
        return "sampling.best_of"
    defaults = spec.model.default_sampling
    if spec.resolved.sampling.HasField("beam_search") and value != getattr(defaults, name):
        return "sampling.beam_search"
    return spec.model.sampling_origins.get(name, DEFAULT)


def _sequences(spec: RequestSpec, answers: AnswerContext | None) -> list[Sequence]:
    output, asked, stopping = spec.request.output, spec.request.stopping, spec.resolved.stopping
    wanted = OutputFields(
        text=output.text if output.HasField("text") else True,
        token_ids=output.token_ids,
        token_bytes=spec.model.tokenizer.token_bytes if output.token_bytes else None,
        cumulative=output.mode == CUMULATIVE,
        include_stop=stopping.include_stop,
        min_tokens=stopping.min_tokens,
        logprobs=output.HasField("logprobs"),
        likelihood=spec.resolved.is_choice,
        prompt_only=spec.prompt_only,
    )
    stops = None
    if asked.stop or asked.stop_regex:
        silent = spec.model.tokenizer.special_tokens if _skips_special(output) else {}
        stops = StopStrings(
            asked.stop,
            include=stopping.include_stop,
            regexes=asked.stop_regex,
            silent={token: added.content for token, added in silent.items()},
        )
    detokenizer, echo = None, ""
    if wanted.text or stops:
        detokenizer, echo = _detokenizer(spec)
    sequences = []
    for index in range(spec.resolved.sampling.n):
        own = detokenizer.copy() if detokenizer is not None else None
        if answers is not None and own is not None:
            own = Answer(answers, index, own)
        matcher = StopMatcher(stops) if stops is not None else None
        repetition = None
        if asked.HasField("repetition"):
            ngram, count = asked.repetition.max_ngram, asked.repetition.count
            repetition = RepetitionDetector(ngram, count, stopping.min_tokens)
        sequences.append(Sequence(index, wanted, own, matcher, echo, repetition))
    return sequences


def _detokenizer(spec: RequestSpec) -> tuple[Detokenizer, str]:
    """Returns a detokenizer primed with the prompt, and the prompt's text if it is to be echoed."""
    output = spec.request.output
    detokenizer = spec.model.tokenizer.detokenizer(skip_special_tokens=_skips_special(output))
    if output.echo:
        return detokenizer, detokenizer.push(spec.prompt.token_ids)
    detokenizer.prime(spec.prompt.known_ids)
    return detokenizer, ""


def _skips_special(output: generation_pb2.OutputOptions) -> bool:
    return output.skip_special_tokens if output.HasField("skip_special_tokens") else True
