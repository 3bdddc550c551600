"""Calls that stand for many requests, under one id: embeddings of several inputs, scores of continuations.

An input is a request that pools. A continuation is a request whose prompt ends with it and which asks for
log-probabilities from its first token on; the prefix cache computes the prompt once, since requests that
arrive together share the blocks that the first one computes.

Each of the requests costs the event loop as much as any other. A tenant's calls share their turns: as many as
its quotas allow, since more would only be refused, and few while other tenants have calls here, whose
messages would have to wait for all that begin together. Embeddings are bounded by the engine's rows, too.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from frontend.auth.caller import Caller, Terms
from frontend.call.call import Call
from frontend.call.turns import TenantTurns
from frontend.errors import Aborted, ContextLengthExceeded, InvalidRequest, Unsupported
from frontend.model.info import ModelInfo, limits_of
from frontend.model.pooling_config import PoolingDefaults
from frontend.prompts.prompt_encoding import TokenizedPrompt
from frontend.streams.generator import Generator
from frontend.streams.request_spec import CallMode
from frontend.streams.stream import Stream
from frontend.telemetry.tracing import put_log_fields
from frontend.validation.requests import check_continuations, check_embed
from frontend.validation.rules import MAX_COUNT, Limits
from pagewire.internal.v1 import engine_pb2, reader_pb2
from pagewire.limits import MAX_VECTOR_VALUES
from pagewire.v1 import generation_pb2, pooling_pb2, prompt_pb2
from pagewire.v1.pooling_pb2 import EMBEDDING_KIND_TOKENS

BESIDE_OTHERS = 4
"""Requests of a tenant's groups that run at once while other tenants have calls at this frontend."""

_STAGES = "queue", "prefill"

T = TypeVar("T")
PoolingRequest = pooling_pb2.EmbedRequest | pooling_pb2.ScoreRequest | pooling_pb2.ClassifyRequest
Inputs = Items[tuple[str, prompt_pb2.Prompt | reader_pb2.ReadPair]]
"""What a call pools, each with its path in the request."""
GroupRequest = PoolingRequest | pooling_pb2.ScoreContinuationsRequest


def most_at_once(facts: engine_pb2.Welcome | None) -> int:
    """Returns how many requests of one call are in flight at most: two per row of the engines, whose queues
    neither run dry nor fill up. facts: what holds at every engine; None: none is known."""
    return 2 * max(facts.max_num_seqs * facts.parallelism.data if facts is not None else 0, 1)


class GroupTurns:
    """Shares the turns of a tenant's groups. Belongs to the event loop's thread. Without authentication
    tenants are not told apart, and all begin at once."""

    def __init__(self, serves_others: Callable[[str], bool]) -> None:
        """serves_others: whether tenants beside this one have calls now."""
        self._serves_others = serves_others
        self._callers: dict[str, Caller] = {}  # the last one of each tenant that has turns
        self._turns = TenantTurns(None, self._share)

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Waits for a turn, in order of arrival, and holds it within the block."""
        if caller.tenant is None:
            yield
            return
        self._callers[caller.tenant] = caller
        await self._turns.begin(caller.tenant)
        try:
            yield
        finally:
            self._turns.end(caller.tenant)
            if not self._turns.num_running(caller.tenant):
                del self._callers[caller.tenant]

    def _share(self, tenant: str) -> int:
        """Returns how many requests of one sequence the tenant may have at once."""
        caller = self._callers[tenant]
        terms = caller.terms or Terms()
        most = min(quota or MAX_COUNT for quota in (terms.max_requests, terms.max_sequences))
        return min(most, BESIDE_OTHERS) if self._serves_others(tenant) else most


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """One call, and the ids of its requests.

    ends: when its deadline passes, on the loop's clock; None: it has none.
    """

    whole: GroupRequest
    call: Call
    ends: float | None
    request_ids: tuple[str, ...]

    def request(
        self, index: int, token_ids: Items[int], output: generation_pb2.OutputOptions
    ) -> generation_pb2.GenerateRequest:
        """Returns a request that computes the tokens of a prompt."""
        return generation_pb2.GenerateRequest(
            request_id=self.request_ids[index],
            model=self.whole.model,
            adapter=getattr(self.whole, "adapter", ""),
            prompt=prompt_pb2.Prompt(token_ids=prompt_pb2.TokenIds(ids=token_ids)),
            sampling=generation_pb2.SamplingParams(temperature=0),
            stopping=generation_pb2.StoppingCriteria(max_tokens=0),
            output=output,
            priority=self.whole.priority,
            tenant=self.whole.tenant,
            cache=self.whole.cache,
        )


class RequestGroups:
    """Runs the requests of groups. Belongs to the event loop's thread."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._turns = GroupTurns(generator.limits.serves_others)

    @contextmanager
    def open(self, whole: GroupRequest, call: Call, size: int) -> Iterator[RequestGroup]:
        """Reserves the ids of a group of a validated request within the block.
        Raises TenantMismatch, TermsExceeded, RequestExists."""
        tenant = call.caller.act_as(whole.tenant)
        call.caller.check_terms(whole.priority)
        ends = None if call.time_left is None else asyncio.get_running_loop().time() + call.time_left
        request_id = whole.request_id or secrets.token_hex(16)
        put_log_fields(request_id, tenant, call.trace)
        with self._generator.registry.group(request_id, call.caller, size, call.aborted) as members:
            yield RequestGroup(whole, call, ends, members)

    async def run(
        self,
        group: RequestGroup,
        make: Callable[[int], generation_pb2.GenerateRequest],
        mode: Callable[[int], CallMode],
        read: Callable[[Stream, generation_pb2.GenerateResponse | None], T],
        slots: asyncio.Semaphore | None = None,
    ) -> list[T]:
        """Runs all requests of a group, and returns their results in order. The first failure ends all.

        make: returns a request by its index when its turn has come: each has a copy of its prompt. mode:
        returns how it runs. read: returns the result from the one message. slots: of requests at once, over
        all tenants.
        """

        async def run_one(index: int) -> T:
            async with slots or nullcontext(), self._turns.turn(group.call.caller):
                left = None
                if group.ends is not None:
                    left = max(group.ends - asyncio.get_running_loop().time(), 0.0)
                call = replace(group.call, time_left=left)
                async with self._generator.open(make(index), call, mode(index)) as stream:
                    return read(stream, await stream.take())

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(run_one(index)) for index in range(len(group.request_ids))]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in running]


@dataclass(frozen=True, slots=True)
class PoolingUsage:
    """The tokens and the nanoseconds of one call."""

    prompt_tokens: int
    cached_prompt_tokens: int
    tokenization_ns: int
    """Of all inputs."""
    queue_ns: int
    """Of an input in the engine's queue, on average."""
    inference_ns: int
    """Of an input in the engine's steps, on average."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """The embeddings of one call."""

    columns: list[bytes]
    """float32 columns, in the order of the inputs."""
    token_ids: list[Items[int]]
    """Of each input."""
    truncated: list[int]
    """Tokens of each input that were cut off."""
    usage: PoolingUsage


def inputs_of(
    request: pooling_pb2.EmbedRequest | pooling_pb2.ClassifyRequest,
) -> list[tuple[str, prompt_pb2.Prompt]]:
    """Returns the inputs of a request."""
    return [(f"inputs[{place}]", prompt) for place, prompt in enumerate(request.inputs)]


def pairs_of(
    query: str, documents: Iterable[tuple[str, prompt_pb2.Prompt]], max_model_len: int, instruction: str = ""
) -> Inputs:
    """Returns the pairs of a query and each document, which is a text; documents come with their paths."""
    shared = reader_pb2.ReadPair(query=query, instruction=instruction, max_model_len=max_model_len)
    inputs = []
    for path, document in documents:
        pair = reader_pb2.ReadPair(document=document, path=path)
        pair.MergeFrom(shared)
        inputs.append((path, pair))
    return inputs


class PromptPooler:
    """Pools the inputs of calls, each by a request to the engine."""

    def __init__(self, generator: Generator) -> None:
        self._generator, self._groups = generator, RequestGroups(generator)

    async def pool(
        self,
        request: PoolingRequest,
        call: Call,
        mode: CallMode,
        inputs: Inputs,
        max_length: int | None = None,
        max_tokens: int | None = None,
    ) -> Vectors:
        """Returns a vector per input of a validated request. mode: of each, but for what its prompt decides.
        max_length: tokens that one may have; None: the context's. max_tokens: of all inputs together; None:
        any number. Raises ServiceError."""
        generator = self._generator
        welcome = generator.engine.require_known()
        limits = limits_of(welcome, generator.config)
        limits = replace(limits, max_model_len=max_length or limits.max_model_len)
        output = generation_pb2.OutputOptions(text=False)
        slots = asyncio.Semaphore(most_at_once(welcome))
        size = max(request.ByteSize(), sum(given.ByteSize() for _, given in inputs))  # pairs repeat the query
        with self._groups.open(request, call, len(inputs)) as group:
            with generator.limits.reading(size, call.caller):
                began, prompts = time.monotonic_ns(), []
                for path, given in inputs:
                    prompts.append(await self._read(given, path, limits, call.caller.tenant))
                tokenization = time.monotonic_ns() - began
            token_ids: list[Items[int]] = [each.token_ids for each in prompts]
            count = sum(map(len, token_ids))
            if max_tokens is not None and count > max_tokens:
                most = f"must have at most {max_tokens} tokens in all with vectors of this size"
                raise InvalidRequest({"inputs": f"{most}, not {count}"})
            found = await self._groups.run(
                group,
                lambda index: group.request(index, prompts[index].token_ids, output),
                lambda index: _of_pair(mode, prompts[index].second_text),
                _read_vector,
                slots,
            )
        cached = sum(cached for _, cached, _ in found)
        queue, inference = (sum(phases[name] for *_, phases in found) // len(found) for name in _STAGES)
        usage = PoolingUsage(count, cached, tokenization, queue, inference)
        truncated = [each.num_truncated for each in prompts]
        return Vectors([column for column, *_ in found], token_ids, truncated, usage)

    async def _read(
        self, given: prompt_pb2.Prompt | reader_pb2.ReadPair, path: str, limits: Limits, tenant: str | None
    ) -> TokenizedPrompt:
        """Returns the tokens of an input."""
        prompts = self._generator.prompts
        if isinstance(given, reader_pb2.ReadPair):
            return await prompts.read_pair(given, tenant)
        return await prompts.read_for_generation(given, path, limits, tenant, prompt_only=True)


def _of_pair(mode: CallMode, second_text: int) -> CallMode:
    """Returns the mode of a prompt of two texts. second_text: see Encoding."""
    if not second_text:
        return mode
    pooling = engine_pb2.Pooling(second_text=second_text)
    pooling.MergeFrom(mode.pooling or pooling)
    return replace(mode, pooling=pooling)


class Embedder:
    """Embeds by requests to the engine."""

    def __init__(self, generator: Generator, pooler: PromptPooler) -> None:
        self._generator, self._pooler = generator, pooler

    async def embed(self, request: pooling_pb2.EmbedRequest, call: Call, *, cuts: bool = True) -> Vectors:
        """Embeds all inputs, or their tokens. The request is changed: prompts precede its texts. cuts: a text
        beyond the checkpoint's max_seq_length is cut, not refused. Raises ServiceError."""
        generator = self._generator
        adapter = await generator.find_adapter(request, call.caller)
        welcome = generator.engine.require_known()
        defaults, size = require_pooling(generator.model, welcome.model)
        limits, texts = limits_of(welcome, generator.config), defaults.texts
        name = request.prompt_name if request.HasField("prompt_name") else None

        def check() -> None:
            check_embed(request, limits, size)
            if problem := defaults.problem(request.kind):
                raise Unsupported({"kind": problem})
            texts.apply(inputs_of(request), name, limits.max_model_len, cuts=cuts)

        _, call = await generator.in_turn(check, request.request_id, request.ByteSize(), call)
        normalize = request.normalize if request.HasField("normalize") else defaults.normalize
        of_tokens = request.kind == EMBEDDING_KIND_TOKENS
        pooling = engine_pb2.Pooling(
            type=engine_pb2.POOLING_TYPE_ALL if of_tokens else defaults.type,
            dimensions=request.dimensions,
            normalize=normalize,
            head=defaults.head,
        )
        mode = CallMode(one_message=True, pooling=pooling, adapter=adapter)
        longest = None if cuts else texts.longest(limits.max_model_len)
        most = MAX_VECTOR_VALUES // (request.dimensions or size) if of_tokens else None
        return await self._pooler.pool(request, call, mode, inputs_of(request), longest, most)


def require_pooling(model: ModelInfo, facts: engine_pb2.ModelFacts) -> tuple[PoolingDefaults, int]:
    """Returns how a model pools, and the elements of a vector. Raises Unsupported."""
    pooling = model.pooling
    if pooling is None:
        problem = "makes no embeddings: its checkpoint does not say how, nor does --pooling-type"
        raise Unsupported({"model": problem})
    size = pooling.size(facts)
    if not size:
        what = "has not loaded its head (see its log)" if pooling.head else "cannot pool"
        raise Unsupported({"model": f"makes no embeddings: its engine {what}"})
    return pooling, size


def _read_vector(
    stream: Stream, message: generation_pb2.GenerateResponse | None
) -> tuple[bytes, int, dict[str, int]]:
    """Returns the vector of one input, the tokens of it that were cached, and its nanoseconds by phase."""
    if message is None or stream.vector is None:
        raise Aborted
    return stream.vector, message.prompt.cached_tokens, stream.phases


class ContinuationScorer:
    """Scores continuations by generation requests."""

    def __init__(self, generator: Generator) -> None:
        self._generator, self._groups = generator, RequestGroups(generator)

    async def score(
        self, request: pooling_pb2.ScoreContinuationsRequest, call: Call
    ) -> pooling_pb2.ScoreContinuationsResponse:
        """Scores all continuations. Raises ServiceError."""
        generator = self._generator
        adapter = await generator.find_adapter(request, call.caller)
        limits = limits_of(generator.engine.require_known(), generator.config)
        check = partial(check_continuations, request, limits, generator.config.max_continuations)
        _, call = await generator.in_turn(check, request.request_id, request.ByteSize(), call)
        texts, tenant = list(request.continuations), call.caller.tenant
        with self._groups.open(request, call, len(texts)) as group:
            with generator.limits.reading(request.ByteSize(), call.caller):
                prompts = generator.prompts
                read = await prompts.read_for_generation(request.prompt, "prompt", limits, tenant)
                prompt = list(read.token_ids)
                continuations = await prompts.read_continuations(texts, tenant)
            for place, tokens in enumerate(continuations):
                _check_length(f"continuations[{place}]", len(prompt), len(tokens), limits.max_model_len)
            output = generation_pb2.OutputOptions(
                text=False,
                prompt_logprobs=generation_pb2.LogprobOptions(),
                prompt_logprobs_start=len(prompt),
            )
            scored = await self._groups.run(
                group,
                lambda index: group.request(index, prompt + continuations[index], output),
                lambda _: CallMode(one_message=True, adapter=adapter, prompt_len=len(prompt)),
                _read_score,
            )
        return _response(request, len(prompt), scored)


def _read_score(stream: Stream, message: generation_pb2.GenerateResponse | None) -> tuple[list[float], int]:
    """Returns the log-probabilities of a continuation's tokens, and the tokens that were cached. Raises
    Aborted when some are missing."""
    assert message is not None  # a stream ends with a message or raises
    logprobs = list(message.prompt.logprobs.logprobs)
    if stream.missing_prompt_logprobs is not None:
        raise Aborted
    return logprobs, message.prompt.cached_tokens


def _check_length(path: str, prompt_len: int, length: int, max_model_len: int) -> None:
    if not length:
        raise InvalidRequest({path: "has no tokens"})
    if prompt_len + length > max_model_len:
        raise ContextLengthExceeded(path, prompt_len + length, max_model_len)


def _response(
    request: pooling_pb2.ScoreContinuationsRequest, prompt_len: int, scored: list[tuple[list[float], int]]
) -> pooling_pb2.ScoreContinuationsResponse:
    response = pooling_pb2.ScoreContinuationsResponse()
    for logprobs, _ in scored:
        listed = logprobs if request.token_logprobs else ()
        response.scores.add(logprob=sum(logprobs), tokens=len(logprobs), token_logprobs=listed)
    response.usage.prompt_tokens = prompt_len + sum(len(logprobs) for logprobs, _ in scored)
    # The first request found what was cached before; the others may have found what it computed.
    response.usage.cached_prompt_tokens = min(prompt_len, *(cached for _, cached in scored))
    return response
