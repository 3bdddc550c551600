"""Requests and their sequences, as the engine core sees them: token ids, limits, blocks.

A request is created complete (intake/validation.py) and has `n` sequences. A sequence has `num_tokens`
(prompt and output) and `num_computed_tokens` (those whose keys and values are in its blocks); scheduling
moves the second toward the first.

A plan counts ahead of its result: once a plan samples a token, `num_tokens` includes that token and
`num_computed_tokens` what the plan computes. Until its result arrives the token is pending. A plan may
sample several tokens of a sequence; all but the first are uncertain, since the worker may return fewer.
The counters are written by the methods and functions of this module alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from struct import pack

from engine_core.beam_search import BeamParameters
from engine_core.score_history import ScoreHistory
from engine_core.step.plan import RowParameters
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST
from pagewire.v1.generation_pb2 import LogprobOptions

NO_ROW = -1
MAX_DRAFTS = (1 << 32) - 1
"""Of a request that leaves the length of drafts to the server."""
NO_TOKEN = (1 << 32) - 1
"""A worker's answer for a row whose logits are NaN, so that no token can be chosen."""


class FinishReason(IntEnum):
    """Why a sequence ended; the numbers of pagewire.v1.FinishReason."""

    NONE = 0
    EOS = 1
    STOP = 2
    MAX_TOKENS = 3
    CONTEXT_LENGTH = 4
    TIME_LIMIT = 5
    ABORTED = 6


class Status(IntEnum):
    """State of a sequence.

    WAITING ──> RUNNING ──> ENDED      WAITING: in the queue, without row and blocks
       ^           │                   FORKING: waits for the prompt that its leader computes, with a
       └─preempted─┘                            reserved row while the leader runs
    FORKING ──> RUNNING                RUNNING: has a row and blocks
    FOLLOWING ───────────> ENDED       FOLLOWING: carries a beam of a search, and is in the plans of its
                                                leader; has a row while the leader runs
    """

    WAITING = 0
    FORKING = 1
    RUNNING = 2
    ENDED = 3
    FOLLOWING = 4


@dataclass(slots=True)
class PendingPromptLogprobs:
    """Prompt log-probabilities that the client asked for and that have not been sent yet."""

    options: LogprobOptions
    next: int
    """First position in the prompt, at least 1, that has not been sent."""


@dataclass(slots=True)
class History:
    """The past of a request, for operators: no decision reads it. Times are in seconds on the core's
    monotonic clock."""

    age: float = 0.0
    """Seconds from its arrival at its frontend to that at this core."""
    began: float | None = None
    """When it was first scheduled."""
    waits: tuple[float, ...] = ()
    """Seconds that it had waited until then, by cause; see scheduler/outputs/wait_causes.py."""
    num_cached_tokens: int = 0
    """Tokens of its prompt that the prefix cache had then."""
    prefill: float | None = None
    """Seconds from then to the plan that completes its prompt, without pauses; None: it is not complete."""
    paused: float = 0.0
    """Seconds of its pauses by preemption that are over."""
    transfer: float = 0.0
    """Seconds for which its prefix was being copied from another core."""


@dataclass(slots=True)
class RequestOwner:
    """The call that a request runs for, and what the core keeps for the next call that takes it over."""

    submitted: float = 0.0  # when the call arrived at its frontend
    abort_at: float | None = None  # the deadline of the call; Request.deadline_at is that of the first call
    disconnect_grace: float = 0.0  # seconds for which the request goes on without a call
    content: bytes = b""  # digest of what the client asked for; empty: no other call can take it over
    num_handovers: int = 0  # to later calls
    ended_elsewhere: frozenset[int] = frozenset()  # sequences of which the core may lack output
    prompt_scores: ScoreHistory | None = None  # those of prompt_logprobs that were sent; None: none are kept


@dataclass(slots=True, eq=False)
class Request:
    """A request in flight. Times are in seconds on the core's monotonic clock."""

    frontend: bytes  # identity of its socket
    handle: int  # the frontend's number for it
    request_id: str
    prompt: array[int]
    parameters: RowParameters
    max_tokens: int
    max_model_len: int
    eos_token_ids: frozenset[int]  # empty when EOS is ignored
    stop_token_ids: frozenset[int]
    arrival: float
    key: int = 0  # names it in the crash journal; see quarantine/blame.py
    group: str = ""  # public id of several requests, of which this is one
    priority: int = 0  # its class: lower is sooner
    tenant: str = ""
    trace_id: str = ""  # of its W3C trace; empty: it is not traced
    tenant_weight: float = 0.0  # share of the tenant, from here on; 0: as it was
    cache_salt: str = ""
    cache_bypass: bool = False  # neither reads nor writes the prefix cache
    holder: str = ""  # address of a core from which its prefix is still to be pulled; see kv_transfer/
    content_hashes: Mapping[int, bytes] = field(default_factory=dict)
    """Position in the prompt -> what identifies that which stands there in place of the token's embedding: a
    value of parameters.embeddings, or a vector of one of parameters.media."""
    prompt_logprobs: PendingPromptLogprobs | None = None
    time_limit_at: float | None = None
    deadline_at: float | None = None
    sequences: list[Sequence] = field(default_factory=list)
    forking: dict[Sequence, None] = field(default_factory=dict)
    """Those that are FORKING or FOLLOWING, in order; removal in O(1)."""
    num_live: int = 0  # sequences that have not ended
    num_running: int = 0  # sequences that are RUNNING
    num_preemptions: int = 0  # of its sequences
    num_made: int = 0  # tokens of output of those that have ended, less what was delivered before
    num_paid: int = 0  # tokens that came with it, as far as its tenant's quota has paid for them
    scheduled: bool = False  # was scheduled at least once
    max_drafts: int = MAX_DRAFTS  # tokens that may be drafted for one of its rows in a step
    num_vector_values: int = 0  # elements of all of its vectors, if it pools
    row_error: str = ""  # why a row of it could not go on, as the worker says
    beam_search: BeamParameters | None = None  # its sequences carry beams, and do not sample
    history: History = field(default_factory=History)
    owner: RequestOwner = field(default_factory=RequestOwner)

    def start_sequences(self, n: int, delivered: dict[int, array[int]]) -> None:
        """Creates the sequences 0 to n - 1.

        The first one leads: it computes the prompt, then the others fork from it. Sequences of which output
        was delivered before (index -> token ids) differ from the start, and are independent.
        """
        stops = self.eos_token_ids | self.stop_token_ids
        limit = min(len(self.prompt) + self.max_tokens, self.max_model_len)
        for index in range(n):
            output = delivered.get(index) or array("I")
            self.sequences.append(Sequence(self, index, output, len(self.prompt) + len(output), limit, stops))
            self.num_made -= len(output)
        if not delivered:
            self.sequences[0].leads = n > 1 or self.beam_search is not None
            for sequence in self.sequences[1:]:
                sequence.status = Status.FORKING if self.beam_search is None else Status.FOLLOWING
                self.forking[sequence] = None
        self.num_live = n

    @property
    def pools(self) -> bool:
        """Whether its sequence ends with a vector, without output."""
        return self.parameters.pooling is not None

    @property
    def may_burst(self) -> bool:
        """Whether its rows may take several steps in one plan: the core has no part in what they sample."""
        return not (self.parameters.grammar or self.pools or self.beam_search)

    @property
    def num_candidates(self) -> int:
        """Tokens that the worker proposes for each of its rows instead of sampling; 0: rows sample."""
        return 0 if self.beam_search is None else self.beam_search.num_candidates

    @property
    def width(self) -> int:
        """Sequences that advance together with one that runs, itself included."""
        return 1 if self.beam_search is None else self.beam_search.width

    def ending(self, output: array[int]) -> tuple[FinishReason, int]:
        """Why a sequence ends after this output, and the token that matched (0: none). Asked where a sequence
        may have ended alone: a new reason needs a condition in take_one_each() and Sequence.take(), too.

        A token at a position below min_tokens ends nothing: the worker does not allow stop tokens
        there, and a delivered one is taken as it is. But EOS ends an output that its grammar says is
        complete.
        """
        is_long_enough = len(output) > self.parameters.min_tokens
        if output and (is_long_enough or self.parameters.grammar):
            token = output[-1]
            if token in self.eos_token_ids:
                return FinishReason.EOS, token
            if token in self.stop_token_ids and is_long_enough:
                return FinishReason.STOP, token
        if len(output) >= self.max_tokens:
            return FinishReason.MAX_TOKENS, 0
        if len(self.prompt) + len(output) >= self.max_model_len:
            return FinishReason.CONTEXT_LENGTH, 0
        return FinishReason.NONE, 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One output of a request."""

    request: Request
    index: int
    output: array[int]  # token ids
    num_tokens: int  # prompt and output, pending tokens included
    limit: int  # num_tokens at which it ends
    stops: frozenset[int]  # tokens that may end it
    num_computed_tokens: int = 0
    num_uncertain_tokens: int = 0  # pending tokens that the result may lack; counted in both numbers above
    num_slots: int = 0  # tokens that its blocks can take without another reservation; below `limit`
    blocks: list[int] = field(default_factory=list)  # block table
    num_committed: int = 0  # leading blocks that were offered to the prefix cache
    num_shared_blocks: int = 0  # of those cached when it was admitted; see kv_cache/state_checkpoints.py
    hashes: list[bytes] = field(default_factory=list)  # of its first 0, 1, 2 ... blocks; see prefix_cache.py
    row: int = NO_ROW
    status: Status = Status.WAITING
    num_drafts: int = 0  # tokens that the worker would have drafted for it after its last result
    num_preemptions: int = 0  # so far
    draft_yield: float | None = None  # tokens of a draft that were accepted lately; see planning/drafts.py
    scores: ScoreHistory | None = None  # log-probabilities of its output; None: none are kept
    num_charged: int = 0  # leading tokens that its tenant has paid for; see queue/token_counters.py
    leads: bool = False  # siblings fork from it once its prompt is computed
    micro_batch: int = 0  # its group among those of the stages; see planning/micro_batches.py

    @property
    def num_new_tokens(self) -> int:
        """Tokens that are still to be computed."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether its prompt is computed and one token is new."""
        return self.num_new_tokens == 1 and self.num_computed_tokens >= len(self.request.prompt)

    @property
    def can_advance(self) -> bool:
        """Whether the next plan may compute its next token.

        False while a pending token may be its last one, while it is not known how many tokens are pending,
        and, where rows propose candidates, while a choice is pending.
        """
        if self.request.num_candidates and self.num_tokens > self.num_known_tokens:
            return False
        return self.num_tokens < self.limit and not self.num_uncertain_tokens

    @property
    def num_known_tokens(self) -> int:
        """Prompt and output without pending tokens."""
        return len(self.request.prompt) + len(self.output)

    @property
    def num_skippable_tokens(self) -> int:
        """Leading tokens whose logits are not needed, so that cached keys and values can replace them.

        The last token's logits give the next token; those of position p give the log-probability of the
        token at p + 1. Other pooling needs hidden states from the first on.
        """
        pooling = self.request.parameters.pooling
        if pooling is not None and pooling.type != POOLING_TYPE_LAST:
            return 0
        if (pending := self.request.prompt_logprobs) is not None:
            return pending.next - 1
        return min(self.num_tokens - 1, self.num_known_tokens)  # of a victim, several may be pending

    def token_ids(self) -> array[int]:
        """Prompt and output without pending tokens."""
        return self.request.prompt + self.output

    def token_bytes(self, start: int, end: int) -> bytes:
        """The uint32 column token_ids()[start:end], without a copy of the other tokens."""
        prompt, first = self.request.prompt, len(self.request.prompt)
        if start >= first:
            return self.output[start - first : end - first].tobytes()
        if end <= first:
            return prompt[start:end].tobytes()
        return (prompt[start:] + self.output[: end - first]).tobytes()

    def block_content(self, start: int, end: int) -> bytes:
        """What determines the keys and values of these positions, given those before."""
        return block_content(self.token_bytes(start, end), self.request.content_hashes, start, end)

    def finish(self) -> tuple[FinishReason, int]:
        """Why the sequence ends after its last known token; see Request.ending()."""
        return self.request.ending(self.output)

    # Counters.

    def set_computed(self, count: int) -> None:
        """Its blocks hold keys and values of its first `count` tokens, or will once the plan is executed."""
        self.num_computed_tokens = count

    def plan_samples(self, count: int) -> None:
        """A plan samples up to `count` tokens behind the last one, and computes all but the last of them.

        With more than one, it cannot advance before the result: it asks for slots again (`num_slots`), and
        gets none.
        """
        self.num_tokens += count
        if count > 1:
            self.num_computed_tokens += count - 1
            self.num_uncertain_tokens = count - 1
            self.num_slots = self.num_tokens - 1

    def take(self, token_ids: Iterable[int], num_planned: int) -> int:
        """Appends what a plan has sampled, up to a token that ends the sequence; returns how many.

        num_planned: at most so many. Slots that were planned and not used keep their blocks: the next plan
        writes to them.
        """
        expected, taken = 1, 0
        if num_planned > 1:
            expected += self.num_uncertain_tokens
            self.num_uncertain_tokens = 0
        for token in token_ids:
            self.output.append(token)
            taken += 1
            if token in self.stops and self.finish()[0] is not FinishReason.NONE:
                break
        self.num_tokens += taken - expected
        self.num_computed_tokens = min(self.num_computed_tokens, self.num_tokens - 1)
        return taken

    def drop_uncertain(self) -> None:
        """Counts only what the result of its plan must bring: one token."""
        self.num_tokens -= self.num_uncertain_tokens
        self.num_computed_tokens -= self.num_uncertain_tokens
        self.num_uncertain_tokens = 0

    def drop_pending(self) -> None:
        """Pending tokens will not be taken."""
        self.num_tokens, self.num_uncertain_tokens = self.num_known_tokens, 0

    def replace_output(self, output: array[int]) -> None:
        """Another output takes the place of its own."""
        self.output = output
        self.num_tokens = self.num_known_tokens


def plan_one_each(sequences: Iterable[Sequence]) -> None:
    """A plan computes the last token of each sequence and samples one more; plan_samples(1) included."""
    for sequence in sequences:
        sequence.num_computed_tokens += 1
        sequence.num_tokens += 1


def take_one_each(sequences: list[Sequence], token_ids: list[int]) -> list[int]:
    """Appends to each sequence the one token that was sampled for it.

    Returns the indexes of the sequences that may have ended.
    """
    ending = []
    for index, (sequence, token) in enumerate(zip(sequences, token_ids, strict=True)):
        sequence.output.append(token)
        if sequence.num_tokens >= sequence.limit or token in sequence.stops:
            ending.append(index)
    return ending


def block_content(tokens: bytes, contents: Mapping[int, bytes], start: int, end: int) -> bytes:
    """Returns a uint32 column of the tokens from `start` to before `end`, then the position in the block,
    length and bytes of each content hash. contents: by position; see Request.content_hashes."""
    if not contents:
        return tokens
    found = ((i, contents[start + i]) for i in range(end - start) if start + i in contents)
    return tokens + b"".join(pack("<II", i, len(content)) + content for i, content in found)
