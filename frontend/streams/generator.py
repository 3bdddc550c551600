"""The life of a request in the frontend: validate, tokenize, resolve defaults, send, stream, end.

Independent of the transport: gRPC's servicers are one user.
"""

import asyncio
import logging
import secrets
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from frontend.answers.reader import answer_form, open_answers
from frontend.auth.caller import Caller
from frontend.call.call import Call
from frontend.call.limits import ConcurrencyLimits
from frontend.call.messages import LargeMessages
from frontend.engine.client import EngineClient
from frontend.engine.core import Routing, routing_of
from frontend.engine.journal import put_delivered
from frontend.engine.logprobs import check_prompt_logprobs
from frontend.errors import EngineRefused, InvalidRequest, MediaChanged, ModelNotFound
from frontend.model.info import ModelInfo, limits_of
from frontend.prompts.media_fetcher import drop_files, lacks_files
from frontend.prompts.prompt_reader import PromptReader
from frontend.streams.continuation import check_complete, resume
from frontend.streams.pacing import DeliveryPacer
from frontend.streams.request_adapter import (
    AdapterName,
    Request,
    apply,
    check_virtual_tokens,
    name_field,
    named_by,
    with_virtual_tokens,
)
from frontend.streams.request_registry import RegisteredRequest, RequestRegistry
from frontend.streams.request_span import RequestSpan
from frontend.streams.request_spec import (
    STREAMING,
    CallMode,
    RequestIdentity,
    RequestSpec,
    identify,
    to_engine,
    to_stream,
)
from frontend.streams.stream import Stream
from frontend.telemetry.counters import Counters
from frontend.telemetry.timings import RequestTimings
from frontend.telemetry.tracing import put_log_fields
from frontend.validation.defaults import check_answer_size, resolve
from frontend.validation.multi_sequence import sequences_of
from frontend.validation.requests import check_generate
from frontend.validation.rules import Limits, computes_prompt_only
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.internal.v1.engine_pb2 import NamedAdapter
from pagewire.limits import MAX_BAD_WORD_TOKENS
from pagewire.telemetry.tracing import Tracer
from pagewire.v1 import generation_pb2

T = TypeVar("T")
log = logging.getLogger(__name__)


class Generator:
    """Runs generation requests on the engine."""

    def __init__(
        self,
        config: FrontendConfig,
        model: ModelInfo,
        prompts: PromptReader,
        engine: EngineClient,
        limits: ConcurrencyLimits,
        counters: Counters | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.config, self.model, self.prompts = config, model, prompts
        self.engine, self.limits = engine, limits
        self.large_messages = LargeMessages(limits)
        self._counters = counters or Counters()
        self._tracer = tracer
        self.registry = RequestRegistry(engine)
        self.pacer = DeliveryPacer(config.max_merge_delay)
        self._num_doubled = 0  # prompts that begin with two BOS tokens

    @asynccontextmanager
    async def open(
        self, request: generation_pb2.GenerateRequest, call: Call, mode: CallMode = STREAMING
    ) -> AsyncIterator[Stream]:
        """Yields a request's stream; leaving the block before its end aborts the request. Raises
        ServiceError, before the block when the request is refused."""
        with RequestSpan(self._counters, self._tracer, call, request) as span:
            call = replace(call, trace=span.trace)
            async with self._open(request, call, mode, span.timings) as stream:
                span.begin(stream)
                yield stream

    @asynccontextmanager
    async def _open(
        self,
        request: generation_pb2.GenerateRequest,
        call: Call,
        mode: CallMode,
        timings: RequestTimings,
    ) -> AsyncIterator[Stream]:
        size, caller = request.ByteSize(), call.caller
        adapter = mode.adapter or await self.find_adapter(request, caller)
        check = partial(self._check, request, call, mode, adapter)
        (identity, limits), call = await self.in_turn(check, request.request_id, size, call)
        digests: Sequence[bytes] = ()
        lacks = lacks_files(request.prompt)
        with ExitStack() as reading, ExitStack() as held:
            if lacks:
                request, digests, call = await self._put_files(request, call)
                size = request.ByteSize()
                reading.enter_context(self.limits.reading(size, caller))
                name = partial(self._identify, request, call, mode, adapter)
                identity, call = await self.in_turn(name, request.request_id, size, call)
            if request.continuation.media_digests and request.continuation.media_digests != digests:
                raise MediaChanged
            with self.registry.reserve(identity.engine_id, identity.content) as entry:
                entry.aborted |= call.aborted
                entry.tenant, entry.priority, entry.timings = identity.tenant, request.priority, timings
                if not lacks:
                    reading.enter_context(self.limits.reading(size, caller))
                spec = await self._read(request, call, mode, identity, limits, adapter, held)
                if spec.prompt.packed_media:
                    keep = partial(self.prompts.keep_files, request.prompt, caller.tenant)
                    await self.large_messages.run(keep, size, caller)
                if lacks:
                    spec = replace(spec, media_digests=digests)
                    drop_files(request.prompt)
                stream, message = await self._prepare(spec, timings)
                reading.close()
                media, spec = spec.prompt.packed_media, spec.without_media()
                async with self._submitted(request, entry, spec, stream, message, media, timings):
                    yield stream

    @asynccontextmanager
    async def _submitted(
        self,
        request: generation_pb2.GenerateRequest,
        entry: RegisteredRequest,
        spec: RequestSpec,
        stream: Stream,
        message: engine_pb2.AddRequest,
        media: bytes | bytearray,
        timings: RequestTimings,
    ) -> AsyncIterator[None]:
        """Sends a request to an engine core, unless it has ended; leaving the block aborts it. entry: of the
        registry. media: packed. Raises ServiceError."""
        routing = await self._route(spec)
        if entry.failure is not None:
            raise entry.failure
        if entry.aborted:
            stream.abort()
        if stream.ended:
            yield
            return
        self._put_times(message, spec, timings)
        entry.stream = stream
        group = self.registry.group_of(spec.identity.engine_id)
        begun = group is not None and group.begun
        entry.ticket = self.engine.submit(message, stream, routing, begun=begun, media=media)
        if group is not None and not self.engine.waits(entry.ticket):
            group.begun = True
        timings.sent()
        try:
            yield
        except EngineRefused as error:
            name_field(error, named_by(request, self.model.names).field)
            raise
        except (asyncio.CancelledError, GeneratorExit):  # by the client, or its connection broke
            self.engine.release(entry.ticket, detach=True)
            raise
        finally:
            self.engine.release(entry.ticket)

    async def in_turn(
        self, function: Callable[[], T], request_id: str, size: int, call: Call
    ) -> tuple[T, Call]:
        """Returns what function() returns in the turn of the caller's tenant, and the call, which an Abort of
        its request may have ended before. size: bytes of the message. Raises ServiceError."""
        name = call.caller.scope(request_id or secrets.token_hex(16))
        with self.registry.arriving(name) as arrival:
            result = await self.large_messages.run(function, size, call.caller)
        return result, replace(call, aborted=call.aborted or arrival.aborted)

    async def _put_files(
        self, request: generation_pb2.GenerateRequest, call: Call
    ) -> tuple[generation_pb2.GenerateRequest, Sequence[bytes], Call]:
        """Returns a checked request with files in place of its media's digests and URLs, the SHA-256 of each
        that was fetched, and the call, which an Abort may have ended meanwhile. Raises ServiceError."""
        name = call.caller.scope(request.request_id or secrets.token_hex(16))
        whole = generation_pb2.GenerateRequest()
        whole.CopyFrom(request)
        room = self.config.max_request_bytes - request.ByteSize()
        with self.registry.arriving(name) as arrival:
            digests = await self.prompts.put_files([("prompt", whole.prompt)], call.caller.tenant, room)
        return whole, digests, replace(call, aborted=call.aborted or arrival.aborted)

    async def find_adapter(self, request: Request, caller: Caller) -> NamedAdapter | None:
        """Returns the adapter that a request names, if it names one. Raises ServiceError."""
        named = named_by(request, self.model.names)
        if not named.name:
            return None
        adapter = await self._resolve(named, caller)
        check_virtual_tokens(request, adapter, named.field)
        return adapter

    async def check_model(self, name: str, caller: Caller, field: str = "model") -> None:
        """Raises ServiceError unless a name is empty, one of the model's, or that of an adapter that a caller
        may use. Before an engine has told its adapters there are none. field: has the name."""
        if name and name not in self.model.names:
            if self.engine.facts is None:
                raise ModelNotFound(name, field)
            await self._resolve(AdapterName(name, field, b""), caller)

    async def _resolve(self, named: AdapterName, caller: Caller) -> NamedAdapter:
        self.engine.require_known()
        return await self.engine.adapters.resolve(named.name, named.digest, caller, named.field)

    def _check(
        self,
        request: generation_pb2.GenerateRequest,
        call: Call,
        mode: CallMode,
        adapter: NamedAdapter | None,
    ) -> tuple[RequestIdentity, Limits]:
        """Checks all that needs no tokens. Raises ServiceError."""
        if mode.pooling is None:
            self.model.require_head()
        group = self.registry.group_of(call.caller.scope(request.request_id))
        begun = group is not None and group.begun
        limits = limits_of(self.engine.require_known(begun=begun), self.config)
        check_generate(request, limits)
        call.caller.check_terms(request.priority, *sequences_of(request.sampling))
        return self._identify(request, call, mode, adapter), limits

    def _identify(
        self,
        request: generation_pb2.GenerateRequest,
        call: Call,
        mode: CallMode,
        adapter: NamedAdapter | None,
    ) -> RequestIdentity:
        """Returns the identity of a checked request. Raises ServiceError."""
        tenant = call.caller.act_as(request.tenant)
        is_pooled = mode.pooling is not None
        identity = identify(
            request,
            call.caller,
            tenant,
            default_seed=self.config.seed,
            is_pooled=is_pooled,
            adapter=b"" if adapter is None else adapter.digest,
        )
        put_log_fields(identity.request_id, tenant, call.trace)
        return identity

    async def _read(
        self,
        request: generation_pb2.GenerateRequest,
        call: Call,
        mode: CallMode,
        identity: RequestIdentity,
        limits: Limits,
        adapter: NamedAdapter | None,
        held: ExitStack,
    ) -> RequestSpec:
        """Tokenizes the prompt and resolves defaults. held: counts media of the prompt. Raises ServiceError,
        also when the answer cannot fit into a message."""
        tenant = call.caller.tenant
        prompt_only = computes_prompt_only(request.stopping)
        prompt = await self.prompts.read_for_generation(
            request.prompt, "prompt", limits, tenant, prompt_only=prompt_only
        )
        if prompt.packed_media:
            held.enter_context(self.limits.media(len(prompt.packed_media), call.caller))
        self._look_at_beginning(prompt.known_ids)
        if adapter is not None and adapter.virtual_tokens:
            count, most = adapter.virtual_tokens, limits.max_model_len
            prompt = with_virtual_tokens(prompt, count, most, prompt_only=prompt_only)
        fill = partial(resolve, request, self.model.default_sampling, limits, identity.seed)
        resolved = await self.large_messages.run(fill, request.ByteSize(), call.caller)
        spec = RequestSpec(request, call, mode, identity, limits, self.model, prompt, resolved)
        if adapter is not None:
            spec = replace(spec, adapter=apply(adapter, prompt.token_ids[: mode.prompt_len]))
        prompt_len = len(prompt.token_ids)
        check_prompt_logprobs(request.output, prompt_len, limits.vocab_size)
        check_answer_size(request, resolved, prompt_len, limits, in_one_message=spec.final_only)
        return spec

    def _look_at_beginning(self, tokens: "array[int]") -> None:
        """Logs that a prompt begins with two BOS tokens: the client's text has one, and the tokenizer adds
        one."""
        begin = self.model.bos_token_id
        if len(tokens) > 1 and tokens[0] == tokens[1] == begin:
            self._num_doubled += 1
            if self._num_doubled.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
                log.warning(
                    "%d prompts so far begin with two BOS tokens: their text has one, and the tokenizer adds"
                    " another; leave it out, or set add_special_tokens to false",
                    self._num_doubled,
                )

    async def _prepare(
        self, spec: RequestSpec, timings: RequestTimings
    ) -> tuple[Stream, engine_pb2.AddRequest]:
        """Returns a request's stream and the message for the core. Raises ServiceError."""
        request, tokens, tenant = spec.request, spec.prompt.known_ids, spec.call.caller.tenant
        bad_words = await self._read_bad_words(request, tenant)
        seed = spec.resolved.sampling.seed
        run = partial(self.prompts.run, tenant=tenant, weight=request.ByteSize())
        answers = await open_answers(request, self.model.answers, tokens, seed, run)
        form = answer_form(request, self.model.answers, tokens)
        grammar = await self.prompts.read_grammar(form, tenant) if form is not None else ""
        message = to_engine(spec, bad_words, grammar)
        stream = to_stream(spec.without_media(), answers, timings, self.pacer)
        if request.continuation.sequences:
            self._counters.continuations += 1
            await run(lambda: resume(spec, stream, has_grammar=bool(grammar)))
            put_delivered(message, stream.delivered())
            check_complete(spec.resolved, stream.ended)
        return stream, message

    async def _read_bad_words(
        self, request: generation_pb2.GenerateRequest, tenant: str | None
    ) -> list[list[int]]:
        if not request.sampling.bad_words:
            return []
        words = await self.prompts.read_words(list(request.sampling.bad_words), tenant)
        if (longest := max(map(len, words), default=0)) > MAX_BAD_WORD_TOKENS:
            problem = f"must be of at most {MAX_BAD_WORD_TOKENS} tokens each, not {longest}"
            raise InvalidRequest({"sampling.bad_words": problem})
        return words

    async def _route(self, spec: RequestSpec) -> Routing:
        routing = routing_of(spec.request.routing)
        if spec.adapter is not None:
            routing = replace(routing, adapter=spec.adapter.adapter.digest)
        if spec.mode.finds(spec.request):
            return await self.engine.questions.where(spec.identity.engine_id, routing)
        return routing

    def _put_times(self, message: engine_pb2.AddRequest, spec: RequestSpec, timings: RequestTimings) -> None:
        """Writes what depends on the time of sending into the message for the core."""
        if spec.call.time_left is not None:
            left = max(spec.call.time_left - timings.seconds(), 0.0)
            message.deadline.FromNanoseconds(round(left * 1e9))
        self.registry.put_age(message, timings)
        grace = self.config.disconnect_grace if spec.mode.keeps(spec.request) else 0.0
        message.disconnect_grace_ms = round(1e3 * grace)
