"""What the parts of an engine core share: they get one CoreContext, and the parts that they work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine_core.counters import Counters
from engine_core.identity import Identity
from engine_core.io.error_replies import ErrorReplies
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import EngineMessage, Load
from pagewire.v1.admin_pb2 import RankLoad

NOWHERE = b""
"""The frontend of a request that is detached. Nothing is sent there; no socket has this identity."""


@dataclass(frozen=True, slots=True)
class CoreContext:
    """Made once by EngineCore. All of it belongs to the thread of the step loop."""

    identity: Identity
    scheduler: Scheduler
    counters: Counters
    clock: Callable[[], float]
    """Returns seconds; the clock of Received.at."""
    send: Callable[[bytes, EngineMessage], None]
    """Takes (frontend, message) and returns at once. Drops what is for NOWHERE."""
    replies: ErrorReplies

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


def make_context(
    identity: Identity,
    scheduler: Scheduler,
    send: Callable[[bytes, EngineMessage], None],
    clock: Callable[[], float],
) -> CoreContext:
    """Returns a context with counters at 0. send: takes (frontend, message)."""

    def deliver(frontend: bytes, message: EngineMessage) -> None:
        if frontend != NOWHERE:
            send(frontend, message)

    counters = Counters()
    replies = ErrorReplies(identity.epoch, deliver, counters)
    return CoreContext(identity, scheduler, counters, clock, deliver, replies)
