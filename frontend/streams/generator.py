"""The life of a request in the frontend: validate, tokenize, resolve defaults, send, stream, end.

Independent of the transport: gRPC's servicers are one user.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from frontend.answers.form import answer_form
from frontend.answers.reader import AnswerReader, open_answers
from frontend.call.call import Call
from frontend.call.limits import ConcurrencyLimits
from frontend.engine.client import EngineClient
from frontend.engine.journal import put_delivered
from frontend.engine.logprobs import PromptScores, prompt_scores_of
from frontend.engine.routing import routing_of
from frontend.errors import InvalidRequest
from frontend.model.info import ModelInfo, limits_of
from frontend.prompts.prompt_encoding import TokenizedPrompt
from frontend.prompts.prompt_reader import PromptReader
from frontend.streams.continuation import FinishRules, check_complete, resume
from frontend.streams.engine_request import add_request, delivery_of, put_tenant
from frontend.streams.identity import RequestIdentity, identify
from frontend.streams.pacing import DeliveryPacer
from frontend.streams.repetition import RepetitionDetector
from frontend.streams.request_registry import RequestRegistry
from frontend.streams.request_span import RequestSpan
from frontend.streams.sequence import OutputFields, Sequence
from frontend.streams.stream import Header, Stream
from frontend.telemetry.counters import Counters
from frontend.telemetry.log_fields import put_log_fields
from frontend.telemetry.timings import RequestTimings
from frontend.text.detokenizer import Detokenizer
from frontend.text.stop_strings import StopMatcher, StopStrings
from frontend.validation.defaults import Resolved, resolve
from frontend.validation.requests import check_generate
from frontend.validation.response_size import check_answer_size
from frontend.validation.rules import Limits
from frontend.validation.terms import check_terms, sequences_of
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.limits.bad_words import MAX_BAD_WORD_TOKENS
from pagewire.telemetry.tracing import Tracer
from pagewire.v1 import generation_pb2

CUMULATIVE = generation_pb2.OutputOptions.MODE_CUMULATIVE


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
        self._config = config
        self._model = model
        self._prompts = prompts
        self._engine = engine
        self._limits = limits
        self._counters = counters or Counters()
        self._tracer = tracer
        self.registry = RequestRegistry(engine)
        self.pacer = DeliveryPacer(config.max_merge_delay)

    @asynccontextmanager
    async def open(
        self,
        request: generation_pb2.GenerateRequest,
        call: Call,
        *,
        whole: bool = False,
        find: bool = False,
        resumable: bool = False,
        pooling: engine_pb2.Pooling | None = None,
    ) -> AsyncIterator[Stream]:
        """Yields a request's stream; leaving the block before its end aborts the request.

        whole: one message, regardless of the request's mode. find: where there are several cores, the request
        goes to the one that runs it already, if its client chose its id; a continuation always does.
        resumable: if its client chose its id, and is gone, it goes on for --disconnect-grace, as does one
        that is found. pooling: it ends with a vector, and no other call can take it over. Raises
        ServiceError, before the block when the request is refused.
        """
        find = bool(request.request_id) and (find or request.HasField("continuation"))
        with RequestSpan(self._counters, self._tracer, call) as span:
            grace = self._config.disconnect_grace if find or (request.request_id and resumable) else 0.0
            async with self._open(request, call, whole, find, grace, pooling, span) as stream:
                span.begin(stream)
                yield stream

    @asynccontextmanager
    async def _open(
        self,
        request: generation_pb2.GenerateRequest,
        call: Call,
        whole: bool,
        find: bool,
        grace: float,
        pooling: engine_pb2.Pooling | None,
        span: RequestSpan,
    ) -> AsyncIterator[Stream]:
        caller, timings = call.caller, span.timings
        self._model.check_name(request.model)
        if pooling is None:
            self._model.require_head()
        welcome = self._engine.require_known()
        limits = limits_of(welcome, self._config)
        check_generate(request, limits)
        tenant = caller.act_as(request.tenant)
        check_terms(caller, request.priority, *sequences_of(request.sampling))
        identity = identify(request, caller, tenant, is_pooled=pooling is not None)
        put_log_fields(identity.request_id, tenant, span.trace)
        with self.registry.reserve(identity.engine_id, identity.content) as entry:
            entry.tenant, entry.priority, entry.timings = tenant, request.priority, timings
            with self._limits.reading(request.ByteSize(), caller):
                stream, message = await self._prepare(
                    request, identity, limits, timings, whole, caller.tenant
                )
            routing = routing_of(request.routing)
            if find:
                routing = await self._engine.questions.where(identity.engine_id, routing)
            put_tenant(message, tenant, caller)
            if pooling is not None:
                message.pooling.CopyFrom(pooling)
            message.traceparent, message.tracestate = (
                span.trace.traceparent,
                span.trace.tracestate,
            )
            if entry.failure is not None:
                raise entry.failure
            if entry.aborted:
                stream.abort()
            if stream.ended:
                yield stream
                return
            if call.time_left is not None:
                message.deadline.FromNanoseconds(round(max(call.time_left - timings.seconds(), 0.0) * 1e9))
            self.registry.put_age(message, timings)
            message.disconnect_grace_ms = round(1e3 * grace)
            entry.stream = stream
            entry.ticket = self._engine.submit(message, stream, routing)
            timings.sent()
            try:
                yield stream
            except (asyncio.CancelledError, GeneratorExit):  # by the client, or its connection broke
                self._engine.release(entry.ticket, detach=True)
                raise
            finally:
                self._engine.release(entry.ticket)

    async def _prepare(
        self,
        request: generation_pb2.GenerateRequest,
        identity: RequestIdentity,
        limits: Limits,
        timings: RequestTimings,
        whole: bool,
        tenant: str | None,
    ) -> tuple[Stream, engine_pb2.AddRequest]:
        """Returns a request's stream and the message for the core. tenant: of the token; None: no token."""
        prompt = await self._prompts.read_for_generation(
            request.prompt,
            "prompt",
            vocab_size=limits.vocab_size,
            max_model_len=limits.max_model_len,
            tenant=tenant,
        )
        resolved = resolve(
            request,
            self._model.default_sampling,
            vocab_size=limits.vocab_size,
            max_model_len=limits.max_model_len,
            seed=identity.seed,
        )
        delivery = delivery_of(request.output, whole, resolved)
        prompt_scores = prompt_scores_of(request, len(prompt.token_ids), limits.vocab_size)
        check_answer_size(
            request,
            resolved,
            prompt_len=len(prompt.token_ids),
            vocab_size=limits.vocab_size,
            max_model_len=limits.max_model_len,
            in_one_message=delivery.final_only,
        )
        message = add_request(request, identity, prompt, resolved, prompt_scores)
        for word in await self._read_bad_words(request, tenant):
            message.bad_words.add(ids=word)
        answers = await open_answers(
            request, self._model, prompt.token_ids, resolved.sampling.seed, self._prompts.run
        )
        form = answer_form(request, self._model, prompt.token_ids)
        if form is not None:
            message.grammar = await self._prompts.read_grammar(form, tenant)
        stream = Stream(
            self._header(request, identity.request_id, prompt, resolved, prompt_scores),
            delivery,
            self._sequences(request, prompt, resolved, answers),
            timings,
            self.pacer,
        )
        if request.continuation.sequences:
            self._counters.continuations += 1
            rules = FinishRules(
                resolved,
                limits.eos_token_ids,
                len(prompt.token_ids),
                limits.max_model_len,
                has_grammar=bool(message.grammar),
            )
            await self._prompts.run(lambda: resume(request.continuation, stream, rules, limits.vocab_size))
            put_delivered(message, stream.delivered())
            check_complete(resolved, stream.ended)
        return stream, message

    async def _read_bad_words(
        self, request: generation_pb2.GenerateRequest, tenant: str | None
    ) -> list[list[int]]:
        if not request.sampling.bad_words:
            return []
        words = await self._prompts.read_words(list(request.sampling.bad_words), tenant)
        if (longest := max(map(len, words), default=0)) > MAX_BAD_WORD_TOKENS:
            problem = f"must be of at most {MAX_BAD_WORD_TOKENS} tokens each, not {longest}"
            raise InvalidRequest({"sampling.bad_words": problem})
        return words

    def _header(
        self,
        request: generation_pb2.GenerateRequest,
        request_id: str,
        prompt: TokenizedPrompt,
        resolved: Resolved,
        prompt_scores: PromptScores | None,
    ) -> Header:
        shown = prompt.token_ids if request.output.prompt_token_ids else ()
        token_bytes = self._model.tokenizer.token_bytes
        in_bytes = map(token_bytes, shown if request.output.token_bytes else ())
        return Header(
            request_id=request_id,
            model=self._model.name,
            seed=resolved.sampling.seed,
            prompt_tokens=len(prompt.token_ids),
            prompt_token_ids=shown,
            prompt_token_bytes=tuple(in_bytes),
            prompt_scores=prompt_scores,
            token_bytes=token_bytes if request.output.token_bytes else None,
        )

    def _sequences(
        self,
        request: generation_pb2.GenerateRequest,
        prompt: TokenizedPrompt,
        resolved: Resolved,
        answers: AnswerReader | None,
    ) -> list[Sequence]:
        output, stopping, asked = request.output, resolved.stopping, request.stopping
        wanted = OutputFields(
            text=output.text if output.HasField("text") else True,
            token_ids=output.token_ids,
            token_bytes=self._model.tokenizer.token_bytes if output.token_bytes else None,
            cumulative=output.mode == CUMULATIVE,
            include_stop=stopping.include_stop,
            min_tokens=stopping.min_tokens,
            logprobs=output.HasField("logprobs"),
            likelihood=resolved.is_choice,
        )
        stops = None
        if asked.stop or asked.stop_regex:
            silent = self._model.tokenizer.special_tokens if _skips_special(output) else {}
            stops = StopStrings(
                asked.stop,
                include=stopping.include_stop,
                regexes=asked.stop_regex,
                silent={token: added.content for token, added in silent.items()},
            )
        detokenizer, echo = None, ""
        if wanted.text or stops:
            detokenizer, echo = self._detokenizer(output, prompt)
        sequences = []
        for index in range(resolved.sampling.n):
            own = detokenizer.copy() if detokenizer is not None else None
            if answers is not None and own is not None:
                own = answers.answer(index, own)
            matcher = StopMatcher(stops) if stops is not None else None
            repetition = None
            if asked.HasField("repetition"):
                ngram, count = asked.repetition.max_ngram, asked.repetition.count
                repetition = RepetitionDetector(ngram, count, stopping.min_tokens)
            sequences.append(Sequence(index, wanted, own, matcher, echo, repetition))
        return sequences

    def _detokenizer(
        self, output: generation_pb2.OutputOptions, prompt: TokenizedPrompt
    ) -> tuple[Detokenizer, str]:
        """Returns a detokenizer primed with the prompt, and the prompt's text if it is to be echoed."""
        detokenizer = self._model.tokenizer.detokenizer(skip_special_tokens=_skips_special(output))
        if output.echo:
            return detokenizer, detokenizer.push(prompt.token_ids)
        detokenizer.prime(prompt.token_ids)
        return detokenizer, ""


def _skips_special(output: generation_pb2.OutputOptions) -> bool:
    return output.skip_special_tokens if output.HasField("skip_special_tokens") else True
