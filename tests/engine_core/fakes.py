"""A worker without a model, and requests to feed a core with.

The fake worker's token is a hash of (seed, sequence index, position), so that what a sequence must
become is known without running it. It keeps, for every KV slot, the hash of the tokens up to the one
that was computed there, and checks at each step that every row reads exactly its own history through
its block table: a wrong table, a missing copy or a block given to two owners is found at once. Histories
begin with the namespace of the request, so that a block that is shared where it must not be is found too.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from pathlib import Path

from engine_core.intake.validation import Limits, make_request
from engine_core.io.inbox import Inbox
from engine_core.io.worker_group import WorkerGroup
from engine_core.request import FinishReason, Request
from engine_core.scheduler.outputs.outputs import encode_outputs
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import ForkRow, NewRow, Plan, RowParameters
from engine_core.step.result import Result
from pagewire.internal.v1.engine_pb2 import (
    MEDIA_KIND_IMAGE,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MEAN,
    AddRequest,
    Pooling,
    StepOutputs,
    TenantTerms,
)
from pagewire.internal.v1.worker_pb2 import AdapterLoaded, BlocksRead, ReadBlocks, RowPromptLogprobs, StepPlan
from pagewire.ipc.columns import pack_u32, unpack_u8, unpack_u32, unpack_u32_array, unpack_u64
from pagewire.v1.generation_pb2 import BeamSearch, LogprobOptions, SamplingParams, StoppingCriteria
from tests.engine_core.fake_beams import expected_beams, fake_offers
from tests.logprob_columns import Scored, pack_f32, put_together, take_apart

VOCAB = 997
EOS = 2
LIMITS = Limits(
    vocab_size=VOCAB,
    max_model_len=64,
    max_num_seqs=8,
    eos_token_ids=frozenset({EOS}),
    num_blocks=64,
    block_size=4,
    has_grammars=True,
    embedding_size=4,
    media_kinds=frozenset({MEDIA_KIND_IMAGE}),
    max_item_vectors=64,
)


def fake_token(seed: int, index: int, position: int, forbidden: frozenset[int] | tuple[int, ...] = ()) -> int:
    """Returns what the fake worker samples."""
    token = hash((seed, index, position, 12345)) % VOCAB
    while token in forbidden:
        token = (token + 1) % VOCAB
    return token


def fake_score(before: int, token: int, options: LogprobOptions) -> Scored:
    """Log-probabilities of a token, by the history of the one before it; exact in float32."""

    def values(candidate: int) -> tuple[float, int]:
        number = hash((before, candidate, 777))
        return -(number % 4096) / 64, number % VOCAB + 1

    ids = list(options.token_ids.ids) or [(before + i) % VOCAB for i in range(options.top_n)]
    return Scored(*values(token), ids, [values(i)[0] for i in ids], [values(i)[1] for i in ids])


def histories(namespace: Hashable, tokens: list[int]) -> list[int]:
    """For each token, a hash of the namespace and all tokens up to it."""
    hashes, history = [], hash(namespace)
    for token in tokens:
        history = hash((history, token))
        hashes.append(history)
    return hashes


def adapted(tokens: list[int], digest: bytes, start: int) -> list[int]:
    """What tokens stand for where an adapter changes what is computed from a position on."""
    return [*tokens[:start], hash((tokens[start], digest)), *tokens[start + 1 :]]


def add_item(message: AddRequest, positions: Iterable[int], content: bytes = b"image") -> None:
    """Adds an item of media, of a digest that its content has and no other, at these positions."""
    digest = blake2b(content, digest_size=32).digest()
    column = pack_u32(list(positions))
    message.media.add(
        kind=MEDIA_KIND_IMAGE, shape=[1, len(digest), 3], data=3 * digest, digest=digest, positions=column
    )


def histories_of(message: AddRequest, tokens: list[int]) -> list[int]:
    """The histories of tokens of a request."""
    for item in message.media:
        for number, position in enumerate(unpack_u32(item.positions)):
            tokens[position] = hash((item.digest, number))
    if message.HasField("adapter"):
        tokens = adapted(tokens, message.adapter.digest, message.adapter.start)
    return histories(namespace(message), tokens)


def fake_vector(of_tokens: list[int], pooling: Pooling) -> bytes:
    """The vector of a prompt, by the histories of its tokens; exact in float32."""
    read = of_tokens[-1:] if pooling.type == POOLING_TYPE_LAST else of_tokens
    vector = [len(read), *(sum(each >> shift & 255 for each in read) for shift in (0, 8, 16))]
    return pack_f32(vector[: pooling.dimensions or None])


def expected_scores(
    message: AddRequest, output: list[int], first: int, end: int, options: LogprobOptions
) -> list[Scored]:
    """Log-probabilities of the tokens at positions first to end - 1 of prompt and output."""
    tokens = unpack_u32(message.prompt_token_ids) + output
    before = histories_of(message, tokens)
    return [fake_score(before[p - 1], tokens[p], options) for p in range(first, end)]


def resolved_sampling(seed: int = 0, n: int = 1, **fields: object) -> SamplingParams:
    """Sampling parameters as frontends send them: every scalar present."""
    values: dict[str, object] = dict(
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        typical_p=1.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        repetition_penalty=1.0,
        seed=seed,
        n=n,
    )
    return SamplingParams(**(values | fields))  # type: ignore[arg-type]


def adapter_digest(name: str) -> bytes:
    """Returns the digest of the adapter of that name."""
    return name.encode().ljust(32, b".")


def add_request(
    handle: int = 1,
    prompt: int | list[int] = 5,
    *,
    n: int = 1,
    max_tokens: int = 4,
    min_tokens: int = 0,
    delivered: dict[int, list[int]] | None = None,
    request_id: str | None = None,
    tenant: str = "",
    salt: str = "",
    bypass: bool = False,
    priority: int = 0,
    logprobs: LogprobOptions | None = None,
    prompt_logprobs: LogprobOptions | None = None,
    prompt_logprobs_start: int = 0,
    beams: BeamSearch | None = None,
    terms: TenantTerms | None = None,
    again: bool = False,
    age_us: int = 0,
    group: str = "",
    max_draft_tokens: int | None = None,
    pooling: Pooling | None = None,
    adapter: str = "",
    virtual_tokens: int = 0,
    **stopping: object,
) -> AddRequest:
    """An AddRequest; the seed is the handle. prompt: token ids, or how many. adapter: its name.
    virtual_tokens: of it."""
    max_tokens = max_tokens if pooling is None else 1
    if isinstance(prompt, int):
        prompt = [3 + (7 * handle + i) % (VOCAB - 3) for i in range(prompt)]
    message = AddRequest(
        handle=handle,
        request_id=f"request-{handle}" if request_id is None else request_id,
        prompt_token_ids=pack_u32(prompt),
        sampling=resolved_sampling(seed=handle, n=n, **({"beam_search": beams} if beams else {})),
        stopping=StoppingCriteria(max_tokens=max_tokens, min_tokens=min_tokens, **stopping),  # type: ignore[arg-type]
        tenant=tenant,
        cache_salt=salt,
        cache_bypass=bypass,
        priority=priority,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        prompt_logprobs_start=prompt_logprobs_start,
        tenant_terms=terms,
        again=again,
        age_us=age_us,
        group=group,
        max_draft_tokens=max_draft_tokens,
        pooling=pooling,
    )
    if adapter:
        message.adapter.name, message.adapter.digest = adapter, adapter_digest(adapter)
        message.adapter.virtual_tokens = virtual_tokens
    for index, output in (delivered or {}).items():
        message.delivered.add(index=index, token_ids=pack_u32(output))
    return message


def namespace(message: AddRequest) -> Hashable:
    """Returns the namespace within which requests share blocks."""
    return message.handle if message.cache_bypass else (message.tenant, message.cache_salt)


def make(
    message: AddRequest, limits: Limits = LIMITS, frontend: bytes = b"frontend", arrival: float = 0.0
) -> Request:
    """The request of a message."""
    return make_request(message, frontend, arrival, limits)


def expected_output(
    message: AddRequest, index: int, limits: Limits = LIMITS
) -> tuple[list[int], FinishReason]:
    """Returns the output and the finish reason of a sequence that only the model and its limits end."""
    if message.sampling.HasField("beam_search"):
        return expected_beams(message, limits)[index]
    if message.HasField("pooling"):
        return [], FinishReason.STOP
    stopping = message.stopping
    eos = frozenset[int]() if stopping.ignore_eos else limits.eos_token_ids
    stops = eos | frozenset(stopping.stop_token_ids)
    prompt_len = len(message.prompt_token_ids) // 4
    output = next((unpack_u32(part.token_ids) for part in message.delivered if part.index == index), [])
    while True:
        position = len(output) - 1
        if output and position >= stopping.min_tokens and output[-1] in stops:
            return output, FinishReason.EOS if output[-1] in eos else FinishReason.STOP
        if len(output) >= stopping.max_tokens:
            return output, FinishReason.MAX_TOKENS
        if prompt_len + len(output) >= limits.max_model_len:
            return output, FinishReason.CONTEXT_LENGTH
        forbidden = stops if len(output) < stopping.min_tokens else frozenset[int]()
        output.append(fake_token(message.sampling.seed, index, len(output), forbidden))


def run(
    scheduler: Scheduler,
    worker: "FakeWorker | WorkerGroup",
    ledger: "Ledger",
    *,
    steps: int = 10_000,
    now: float = 0.0,
    ahead: bool = False,
) -> int:
    """Steps until nothing is left to do, or so many times; the number of steps that were executed.

    ahead: steps are planned before the results of those before them are taken in.
    """
    for done in range(steps):
        plan = scheduler.schedule(now)
        scheduler.check_invariants()
        if plan.rows:
            worker.submit(plan)
        for _ in range(num_results_due(scheduler, plan, ahead=ahead)):
            scheduler.update(worker.collect())
            scheduler.check_invariants()
        for _, message in encode_outputs(scheduler.take_outputs(), 1, scheduler.step):
            ledger.take(message)
        if not plan.rows and not scheduler.requests and not scheduler.in_flight:
            return done
    return steps


def num_results_due(scheduler: Scheduler, plan: Plan, *, ahead: bool) -> int:
    """Results that the core waits for behind a plan."""
    under_way = len(scheduler.in_flight)
    return max(under_way - ahead * scheduler.most_ahead, int(under_way and not plan.rows))


@dataclass
class FakeRow:
    """What a worker keeps of a sequence."""

    tokens: list[int]
    prompt_len: int
    table: list[int]
    index: int
    parameters: RowParameters
    namespace: Hashable
    num_beam_candidates: int = 0
    num_computed: int | None = None  # not known before it computes: a prefix may be cached
    prompt_logprobs: LogprobOptions | None = None
    prompt_next: int = 0  # the first position whose log-probabilities are still wanted
    read: list[int] = field(default_factory=list)  # of a mean: histories of the positions that it has so far

    def histories(self) -> list[int]:
        """See histories()."""
        tokens, adapter = self.tokens.copy(), self.parameters.adapter
        for item in self.parameters.media:
            for number, position in enumerate(item.positions):
                tokens[position] = hash((item.digest, number))
        if adapter is not None:
            tokens = adapted(tokens, adapter.digest, adapter.start)
        return histories(self.namespace, tokens)


class FakeWorker:
    """Executes plans on a model of the KV cache. Raises AssertionError when a plan is wrong."""

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.num_blocks, self.block_size, self.num_host_blocks = num_blocks, block_size, num_host_blocks
        self.rows: dict[int, FakeRow] = {}
        self.namespaces: dict[int, Hashable] = {}  # of requests, by seed
        self.slots: dict[int, int] = {}  # slot -> history
        self.host_blocks: dict[int, list[int]] = {}  # host block -> histories
        self.plans: list[Plan] = []
        self.num_drafts = 0  # tokens that it would draft for every row
        self.step_us = 0  # of each step of a burst
        self.on_wait: Callable[[], None] = lambda: None  # nothing takes long here
        self.compiled: list[int] = []  # grammars, which take no time here
        self.folders: dict[str, tuple[bytes, int]] = {}  # of adapters: name -> digest, bytes
        self.adapters: set[bytes] = set()  # those that it has loaded
        self.max_adapters = 0  # that the rows of a step may have; 0: any number
        self.vectors: dict[bytes, int] = {}  # of media: digest -> how many
        self.whole_media = False  # a step computes an item whole
        self.encoder_capacity = self.encoder_budget = 0  # vectors that it keeps, and encodes in a step
        self.others: dict[str, FakeWorker] = {}  # by address, whose blocks it can read
        self.reading: list[BlocksRead] = []  # answers
        self.loaded: list[AdapterLoaded] = []  # answers, which take no time here
        self._results: deque[Result] = deque()
        self._sample_counts: list[int] = []  # of the last plan
        self._scores: list[Scored] = []
        self._offers: list[tuple[int, float]] = []  # of its beams
        self._prompt_parts: list[RowPromptLogprobs] = []
        self._vectors: dict[int, bytes] = {}

    def submit(self, plan: Plan) -> None:
        """See engine_core.core.Worker."""
        tokens = self.execute(plan)
        scores = put_together(self._scores) if self._scores else None
        self._results.append(
            Result(
                plan.step,
                tokens,
                duration_us=self.step_us * max(self._sample_counts, default=1),
                sample_counts=self._sample_counts if plan.sample_counts else (),
                next_draft_counts=[self.num_drafts] * len(plan.sample_rows) if self.num_drafts else (),
                logprobs=scores,
                prompt_logprobs=self._prompt_parts,
                beam_token_ids=[token for token, _ in self._offers],
                beam_logprobs=[logprob for _, logprob in self._offers],
                vectors=self._vectors,
            )
        )

    def compile_grammar(self, number: int, grammar: str) -> None:
        """See engine_core.core.Worker."""
        self.compiled.append(number)

    def take_compiled(self) -> list[int]:
        """See engine_core.core.Worker."""
        compiled, self.compiled = self.compiled, []
        return compiled

    def load_adapter(self, number: int, source: str, digest: bytes, max_bytes: int) -> None:
        """See engine_core.core.Worker. A folder holds the adapter in `folders`."""
        name = Path(source).name
        found, size = self.folders.get(name, (b"", 0))
        answer = AdapterLoaded(number=number, digest=found, bytes=size, rank=8, modules=["q_proj"], base="b")
        if not found or (digest and digest != found) or size > max_bytes:
            answer = AdapterLoaded(number=number, problem=f"there is no such adapter in {name}")
        else:
            self.adapters.add(found)
        self.loaded.append(answer)

    def drop_adapter(self, digest: bytes) -> None:
        """See engine_core.core.Worker."""
        self.adapters.discard(digest)

    def take_adapters(self) -> list[AdapterLoaded]:
        """See engine_core.core.Worker."""
        loaded, self.loaded = self.loaded, []
        return loaded

    def read_blocks(self, order: ReadBlocks) -> None:
        """See engine_core.core.Worker."""
        size, source = self.block_size, self.others[order.address]
        for block, target in zip(unpack_u32(order.blocks), unpack_u32(order.targets), strict=True):
            for slot in range(size):
                self.slots[target * size + slot] = source.slots[block * size + slot]
        self.reading.append(BlocksRead(number=order.number, duration_us=1))

    def stop_reading(self, number: int) -> None:
        """See engine_core.core.Worker."""

    def take_blocks_read(self) -> list[BlocksRead]:
        """See engine_core.core.Worker."""
        read, self.reading = self.reading, []
        return read

    def await_burst(self, inbox: Inbox) -> None:
        """See engine_core.core.Worker."""

    def collect(self) -> Result:
        """See engine_core.core.Worker."""
        return self._results.popleft()

    def execute(self, plan: Plan) -> list[int]:
        """One step, in the order that worker.proto states."""
        self.plans.append(plan)
        self._scores, self._prompt_parts, self._offers, self._vectors = [], [], [], {}
        assert len({*plan.removed_rows}) == len(plan.removed_rows)
        for row in plan.removed_rows:
            del self.rows[row]
        for new in plan.new_rows:
            assert new.row not in self.rows and new.token_ids and new.blocks
            assert new.parameters.adapter is None or new.parameters.adapter.digest in self.adapters
            self.rows[new.row] = FakeRow(
                list(new.token_ids),
                new.prompt_len,
                list(new.blocks),
                new.sequence_index,
                new.parameters,
                self.namespaces.get(new.parameters.sampling.seed),
                new.num_beam_candidates,
                prompt_logprobs=new.prompt_logprobs,
                prompt_next=new.prompt_logprobs_start,
            )
        for fork in plan.forks:
            self._fork(fork)
        self._encode(plan)
        found = (self.rows[row].parameters.adapter for row in plan.rows)
        used = {each.digest for each in found if each is not None and not each.virtual_tokens}
        assert not self.max_adapters or len(used) <= self.max_adapters
        self._append(plan)
        self._change_tables(plan)
        self._swap(plan)
        self._copy_blocks(plan)
        sources = [plan.rows[source] for source in plan.sample_sources]
        counts = plan.sample_counts or [1] * len(sources)
        assert min(counts, default=1) >= 1
        self._compute(plan, {row: count - 1 for row, count in zip(plan.sample_rows, counts, strict=True)})
        planned = zip(plan.sample_rows, sources, counts, strict=True)
        samples = [self._sample_several(row, source, count) for row, source, count in planned]
        self._sample_counts = list(map(len, samples))
        for entry, row in enumerate(plan.sample_rows):
            if (pooling := self.rows[row].parameters.pooling) is not None:
                state = self.rows[row]
                read = state.read if pooling.type == POOLING_TYPE_MEAN else state.histories()
                assert read == state.histories()
                self._vectors[entry] = fake_vector(read, pooling)
        return [token for tokens in samples for token in tokens]

    def _encode(self, plan: Plan) -> None:
        """Forgets, encodes, and has the vectors of all positions that the plan computes."""
        for digest in plan.forgotten_media:
            del self.vectors[digest]
        for item in plan.encode:
            assert item.digest not in self.vectors, "an item is encoded twice"
            assert prod(item.shape) == len(item.data)
            self.vectors[item.digest] = len(item.positions)
        assert sum(self.vectors.values()) <= self.encoder_capacity
        encoded = sum(len(item.positions) for item in plan.encode)
        assert encoded <= self.encoder_budget or len(plan.encode) == 1
        needed = set[bytes]()
        for row, start, count in zip(plan.rows, plan.starts, plan.counts, strict=True):
            for item in self.rows[row].parameters.media:
                if any(start <= position < start + count for position in item.positions):
                    cut = item.positions[-1] >= start + count
                    assert not (self.whole_media and cut), "an item that is seen whole is cut"
                    assert item.digest in self.vectors, "a position is computed without its vector"
                    needed.add(item.digest)
        assert needed.issuperset(item.digest for item in plan.encode), "encoded for nothing"

    def _fork(self, fork: ForkRow) -> None:
        source = self.rows[fork.source_row]
        assert fork.row not in self.rows
        self.rows[fork.row] = FakeRow(
            source.tokens.copy(),
            source.prompt_len,
            source.table.copy(),
            fork.sequence_index,
            source.parameters,
            source.namespace,
            source.num_beam_candidates,
        )

    def _append(self, plan: Plan) -> None:
        assert len({*plan.append_rows}) == len(plan.append_rows)
        for row, token in zip(plan.append_rows, plan.append_token_ids, strict=True):
            assert self.rows[row].num_beam_candidates, "only to beams"
            self.rows[row].tokens.append(token)

    def _change_tables(self, plan: Plan) -> None:
        blocks = iter(plan.table_blocks)
        for row, start, count in zip(plan.table_rows, plan.table_starts, plan.table_counts, strict=True):
            table = self.rows[row].table
            assert count > 0 and start <= len(table), "a table has no holes"
            table[start : start + count] = [next(blocks) for _ in range(count)]
        assert next(blocks, None) is None

    def _swap(self, plan: Plan) -> None:
        """A host block that was read is empty, and must not be read twice."""
        targets = plan.swap_out_host_blocks
        assert not targets or not plan.swap_in_host_blocks, (
            "no sequence is swapped in while others are swapped out"
        )
        assert len({*targets}) == len(targets)
        assert all(0 <= block < self.num_host_blocks for block in targets)
        size = self.block_size
        for source, target in zip(plan.swap_out_blocks, targets, strict=True):
            slots = range(source * size, (source + 1) * size)
            self.host_blocks[target] = [self.slots.get(slot, 0) for slot in slots]
        for source, target in zip(plan.swap_in_host_blocks, plan.swap_in_blocks, strict=True):
            for offset, history in enumerate(self.host_blocks.pop(source)):
                self.slots[target * size + offset] = history

    def _copy_blocks(self, plan: Plan) -> None:
        written: set[int] = set()
        for source, target in zip(plan.copy_sources, plan.copy_targets, strict=True):
            assert source not in written and target not in written
            written.add(target)
            for offset in range(self.block_size):
                self.slots[target * self.block_size + offset] = self.slots.get(
                    source * self.block_size + offset, 0
                )

    def _compute(self, plan: Plan, num_drafts: dict[int, int]) -> None:
        """num_drafts: of the tokens that a row computes, so many are not known before they are sampled."""
        assert plan.rows and len({*plan.rows}) == len(plan.rows), "each row computes at most once"
        written: set[int] = set()
        for row, start, count in zip(plan.rows, plan.starts, plan.counts, strict=True):
            state = self.rows[row]
            count -= num_drafts.get(row, 0)
            assert count >= 1 and start + count <= len(state.tokens), (
                row,
                start,
                count,
                len(state.tokens),
                state.num_computed,
                num_drafts,
            )
            assert state.num_computed in (None, start), (
                row,
                start,
                count,
                state.num_computed,
                len(state.tokens),
                num_drafts,
            )
            for position, history in list(enumerate(state.histories()))[start : start + count]:
                slot = self._slot(state, position)
                assert slot not in written, "two tokens in one slot"
                written.add(slot)
                self.slots[slot] = history
            state.num_computed = start + count
            pooling = state.parameters.pooling
            if pooling is not None and pooling.type == POOLING_TYPE_MEAN:
                assert len(state.read) == start, "hidden states are left out"
                state.read += state.histories()[start : start + count]
            self._score_prompt(row, state, start, start + count)
        for row in plan.rows:
            state = self.rows[row]
            for position, history in enumerate(state.histories()[: state.num_computed]):
                assert self.slots[self._slot(state, position)] == history, "a row reads what is not its own"

    def _score_prompt(self, row: int, state: FakeRow, start: int, end: int) -> None:
        if state.prompt_logprobs is None or state.prompt_next == state.prompt_len:
            return
        assert 0 < state.prompt_next < state.prompt_len and start < state.prompt_next
        before = state.histories()
        positions = range(state.prompt_next, max(state.prompt_next, min(end + 1, state.prompt_len)))
        scores = [fake_score(before[p - 1], state.tokens[p], state.prompt_logprobs) for p in positions]
        if scores:
            columns = put_together(scores)
            self._prompt_parts.append(RowPromptLogprobs(row=row, start=positions.start, columns=columns))
        state.prompt_next = positions.stop

    def _sample_several(self, row: int, source: int, count: int) -> list[int]:
        """Samples `count` tokens or fewer, and computes all but the last one; what is beyond is garbage."""
        tokens = [self._sample(row, source)]
        state = self.rows[row]
        assert count == 1 or row == source, "a fork computes nothing"
        accepted = 1 + hash((len(state.tokens), state.index, 4321)) % count
        for _ in range(accepted - 1):
            position = len(state.tokens) - 1
            self.slots[self._slot(state, position)] = state.histories()[position]
            state.num_computed = position + 1
            tokens.append(self._sample(row, row))
        first = len(state.tokens) - 1
        for position in range(first, first + count - accepted):
            self.slots[self._slot(state, position)] = -1
        return tokens

    def _sample(self, row: int, source: int) -> int:
        state, computed = self.rows[row], self.rows[source]
        assert computed.num_computed == len(state.tokens), "only a complete row can be sampled from"
        assert state.tokens == computed.tokens[: len(state.tokens)]
        state.num_computed = computed.num_computed
        position = len(state.tokens) - state.prompt_len
        parameters = state.parameters
        # A grammar is complete at any time here, so that it may end.
        is_short = position < parameters.min_tokens and not parameters.grammar
        forbidden = parameters.stop_token_ids if is_short else ()
        if state.num_beam_candidates:
            self._offers += fake_offers(state.tokens, forbidden, state.num_beam_candidates)
            return 0
        if parameters.pooling is not None:
            return 0
        token = fake_token(parameters.sampling.seed, state.index, position, forbidden)
        if parameters.logprobs is not None:
            self._scores.append(fake_score(state.histories()[-1], token, parameters.logprobs))
        state.tokens.append(token)
        return token

    def _slot(self, state: FakeRow, position: int) -> int:
        block = state.table[position // self.block_size]
        assert 0 <= block < self.num_blocks
        return block * self.block_size + position % self.block_size


class Ledger:
    """What frontends hold: the tokens of every sequence, by (handle, index), and how it ended."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.ends: dict[tuple[int, int], FinishReason] = {}
        self.started: list[int] = []
        self.cached: dict[int, int] = {}  # prompt tokens found in the prefix cache, by handle
        self.scores: dict[tuple[int, int], list[Scored]] = defaultdict(list)
        self.prompt_starts: dict[int, int] = {}  # of the first part, by handle
        self.prompt_scores: dict[int, list[Scored]] = defaultdict(list)
        self.vectors: dict[int, bytes] = {}  # by handle

    def take(self, message: StepOutputs) -> None:
        """Checks that each position comes once and in order, and nothing after the end."""
        self._take_prompt_parts(message)
        for vector in message.vectors:
            assert vector.handle not in self.vectors, "a vector comes twice"
            self.vectors[vector.handle] = vector.values
        scores = iter(take_apart(message.logprobs))
        has_scores = iter(message.has_logprobs or bytes(len(unpack_u32(message.indexes))))
        tokens = iter(unpack_u32(message.token_ids))
        columns = zip(
            unpack_u64(message.handles),
            unpack_u32(message.indexes),
            unpack_u32(message.positions),
            unpack_u32(message.counts),
            unpack_u8(message.finish_reasons),
            unpack_u32(message.finish_token_ids),
            strict=True,
        )
        for handle, index, position, count, reason, matched in columns:
            key = handle, index
            assert key not in self.ends, "something comes after the end"
            assert position == len(self.tokens[key]), "a token is lost or repeated"
            self.tokens[key] += [next(tokens) for _ in range(count)]
            self.scores[key] += [next(scores) for _ in range(count * next(has_scores))]
            if reason:
                self.ends[key] = FinishReason(reason)
            if reason in (FinishReason.EOS, FinishReason.STOP) and handle not in self.vectors:
                assert matched == self.tokens[key][-1]
            else:
                assert matched == 0
        assert next(tokens, None) is next(scores, None) is next(has_scores, None) is None
        started = unpack_u64(message.started_handles)
        assert len(unpack_u32(message.started_queue_us)) == len(started)
        assert not {*started} & {*self.started}
        self.cached.update(zip(started, unpack_u32(message.started_cached_tokens), strict=True))
        self.started += started

    def check_scores(self, message: AddRequest, index: int) -> None:
        """Log-probabilities of every token that was made, and of the prompt before the first one."""
        key = message.handle, index
        output, prompt_len = self.tokens[key], len(unpack_u32(message.prompt_token_ids))
        if message.HasField("logprobs"):
            given = next((len(part.token_ids) // 4 for part in message.delivered if part.index == index), 0)
            first, end = prompt_len + given, prompt_len + len(output)
            assert self.scores[key] == expected_scores(message, output, first, end, message.logprobs)
        else:
            assert not self.scores[key]
        if message.HasField("prompt_logprobs"):
            start, found = max(message.prompt_logprobs_start, 1), self.prompt_scores[message.handle]
            assert self.prompt_starts.get(message.handle, start) == start
            assert not output or len(found) == prompt_len - min(start, prompt_len)
            end = start + len(found)
            assert found == expected_scores(message, [], start, end, message.prompt_logprobs)
        else:
            assert message.handle not in self.prompt_scores

    def check_vector(self, message: AddRequest) -> None:
        """The vector of a request that pools, and none of any other."""
        if message.HasField("pooling"):
            prompt = histories_of(message, unpack_u32(message.prompt_token_ids))
            assert self.vectors[message.handle] == fake_vector(prompt, message.pooling)
        else:
            assert message.handle not in self.vectors

    def _take_prompt_parts(self, message: StepOutputs) -> None:
        """Checks that parts come in order, without gap and overlap, before the first output."""
        for part in message.prompt_logprobs:
            assert not any(tokens for (handle, _), tokens in self.tokens.items() if handle == part.handle)
            scores = self.prompt_scores[part.handle]
            assert part.start == self.prompt_starts.setdefault(part.handle, part.start) + len(scores)
            scores += take_apart(part.columns)


def decode_plan(message: StepPlan) -> Plan:
    """The plan of a message: the other half of engine_core.step.plan.encode_plan."""
    return Plan(
        step=message.step,
        new_rows=[
            NewRow(
                row=new.row,
                token_ids=unpack_u32_array(new.token_ids),
                prompt_len=new.prompt_len,
                blocks=unpack_u32(new.blocks),
                sequence_index=new.sequence_index,
                parameters=RowParameters(
                    new.sampling,
                    new.min_tokens,
                    tuple(new.stop_token_ids),
                    tuple(tuple(word.ids) for word in new.bad_words),
                    new.logprobs if new.HasField("logprobs") else None,
                    new.grammar,
                    new.pooling if new.HasField("pooling") else None,
                ),
                prompt_logprobs=new.prompt_logprobs if new.HasField("prompt_logprobs") else None,
                prompt_logprobs_start=new.prompt_logprobs_start,
                num_beam_candidates=new.num_beam_candidates,
                tenant=new.tenant,
            )
            for new in message.new_rows
        ],
        forks=[ForkRow(fork.row, fork.source_row, fork.sequence_index) for fork in message.forks],
        **{name: unpack_u32(getattr(message, name)) for name in _COLUMNS},
    )


_COLUMNS = (
    "removed_rows",
    "table_rows",
    "table_starts",
    "table_counts",
    "table_blocks",
    "copy_sources",
    "copy_targets",
    "rows",
    "starts",
    "counts",
    "sample_rows",
    "sample_sources",
    "sample_counts",
    "append_rows",
    "append_token_ids",
    "swap_out_blocks",
    "swap_out_host_blocks",
    "swap_in_host_blocks",
    "swap_in_blocks",
    *("restore_rows", "restore_checkpoints", "save_rows", "save_positions", "save_checkpoints"),
)
