"""What the parts of an engine core share: they get one CoreContext, and the parts that they work with.

Identity and Limits are known once the worker is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine_core.counters import Counters
from engine_core.errors import Code, Refused
from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import EngineMessage, Load, RequestFailed, Welcome
from pagewire.v1.admin_pb2 import RankLoad

MAX_PRIORITY = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of requests, known once the worker is ready."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    eos_token_ids: frozenset[int]
    num_blocks: int
    block_size: int
    max_priority: int = MAX_PRIORITY
    """Priorities are -max_priority to max_priority; 0: there are no classes."""
    has_grammars: bool = False
    """The worker masks tokens by grammars."""
    embedding_size: int = 0
    """Elements of the vector of a row that pools; 0: rows cannot pool."""
    head_sizes: tuple[int, ...] = ()
    """Elements of what each of the worker's heads makes of it."""
    input_embedding_size: int = 0
    """Elements of a value in place of a token; 0: rows have tokens alone."""
    media_kinds: frozenset[int] = frozenset()
    """What the worker has an encoder for, MediaKind."""
    max_item_vectors: int = 0
    """Of an item of media: the worker's encoder cache has room for so many."""
    max_whole_item: int | None = None
    """Vectors of an item of media, where a step computes it whole (ModelFacts.whole_media): there is room for
    so many beside all other rows. None: an item may take several steps."""
    adapters_caveat: str = ""
    """Why the worker takes no adapters; empty: it takes them."""
    whole_prompts: bool = False
    """All requests pool; see ModelFacts."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the core tells each frontend about itself, and what it checks requests against."""

    welcome: Welcome
    limits: Limits

    @property
    def epoch(self) -> int:
        """Number of this start of the core."""
        return self.welcome.epoch


BUG = Code.INTERNAL, "INTERNAL", "internal error of the engine core"
"""Code, reason and message for bugs of the engine core."""


def no_token_error(request: Request) -> tuple[Code, str, str]:
    """Returns code, reason and message for a request of which a row got no token."""
    if request.row_error:
        return Code.INVALID_ARGUMENT, "GRAMMAR_FAILED", f"structured_output: {request.row_error}"
    problem = "the model's output is NaN"
    if request.parameters.embeddings is not None:  # finite, but infinite in the model's dtype, or soon after
        return Code.INVALID_ARGUMENT, "NO_LOGITS", f"prompt.embeddings: {problem}"
    if request.parameters.adapter is not None:  # its values are finite, but not what comes of them
        return Code.FAILED_PRECONDITION, "NO_LOGITS", f"{problem} with this adapter"
    return Code.INTERNAL, "NO_LOGITS", problem


NOWHERE = b""
"""The frontend of a request that is detached. Nothing is sent there; no socket has this identity."""


@dataclass(frozen=True, slots=True)
class CoreContext:
    """Made once by EngineCore. All of it belongs to the thread of the step loop."""

    identity: Identity
    scheduler: Scheduler
    transmit: Callable[[bytes, EngineMessage], None]
    """Takes (frontend, message) and returns at once. To be called by send() alone."""
    clock: Callable[[], float]
    """Returns seconds; the clock of Received.at."""
    counters: Counters = field(default_factory=Counters)

    def send(self, frontend: bytes, message: EngineMessage) -> None:
        """Sends a message. Drops what is for NOWHERE."""
        if frontend != NOWHERE:
            self.transmit(frontend, message)

    def fail(self, frontend: bytes, handle: int, code: Code, reason: str, message: str) -> None:
        """Replies that an admitted request has ended by an error."""
        self.counters.failures[reason] += 1
        epoch = self.identity.epoch
        failure = RequestFailed(epoch=epoch, handle=handle, code=code, reason=reason, message=message)
        self.send(frontend, EngineMessage(request_failed=failure))

    def refuse(self, frontend: bytes, handle: int, refusal: Refused) -> None:
        """Replies that a request is not admitted."""
        failure = RequestFailed(
            epoch=self.identity.epoch,
            handle=handle,
            code=refusal.code,
            reason=refusal.reason,
            message=refusal.message,
            field=refusal.field,
            quota=refusal.quota,
        )
        if refusal.retry_after is not None:
            failure.retry_delay.FromNanoseconds(round(refusal.retry_after * 1e9))
        self.send(frontend, EngineMessage(request_failed=failure))

    def describe_load(self) -> Load:
        """Returns the load now, in O(1), as it is reported to frontends."""
        scheduler, counters = self.scheduler, self.counters
        block_size, pool = scheduler.tables.block_size, scheduler.pool
        drafts = counters.draft_tokens
        rank = RankLoad(
            running_requests=scheduler.num_running_requests,
            waiting_requests=len(scheduler.requests) - scheduler.num_running_requests,
            waiting_uncached_tokens=scheduler.waiting.num_tokens,
            kv_used_tokens=(pool.num_blocks - pool.num_free) * block_size,
            kv_total_tokens=pool.num_blocks * block_size,
            output_tokens_per_second=counters.output_rate.per_second(self.clock()),
            prefix_cache_hit_rate=scheduler.prefix_cache.hit_rate.ratio,
            preemptions=scheduler.num_preemptions,
            refused_requests=counters.refused,
            drafted_tokens=sum(drafts.values()),
            accepted_draft_tokens=sum(n for (_, outcome), n in drafts.items() if outcome == "accepted"),
        )
        return Load(
            epoch=self.identity.epoch,
            step=scheduler.step,
            load=rank,
            kv_sampled_slots=scheduler.fragmentation.num_allocated,
            kv_empty_slots=scheduler.fragmentation.num_empty,
        )
