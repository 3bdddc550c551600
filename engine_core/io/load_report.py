"""The load of the engine core, as it is reported to frontends."""

from collections.abc import Mapping

from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import Load
from pagewire.v1.admin_pb2 import RankLoad


def describe_load(
    scheduler: Scheduler,
    epoch: int,
    output_tokens_per_second: float,
    refused: Mapping[str, int],
    drafts: Mapping[tuple[str, str], int],
) -> Load:
    """Returns the load now, in O(1). epoch: of this start of the core. refused: requests by reason. drafts:
    drafted tokens by method and outcome, as Counters has them."""
    block_size, pool = scheduler.tables.block_size, scheduler.pool
    rank = RankLoad(
        running_requests=scheduler.num_running_requests,
        waiting_requests=len(scheduler.requests) - scheduler.num_running_requests,
        waiting_uncached_tokens=scheduler.waiting.num_tokens,
        kv_used_tokens=(pool.num_blocks - pool.num_free) * block_size,
        kv_total_tokens=pool.num_blocks * block_size,
        output_tokens_per_second=output_tokens_per_second,
        prefix_cache_hit_rate=scheduler.prefix_cache.hit_rate.ratio,
        preemptions=scheduler.num_preemptions,
        refused_requests=refused,
        drafted_tokens=sum(drafts.values()),
        accepted_draft_tokens=sum(count for (_, outcome), count in drafts.items() if outcome == "accepted"),
    )
    return Load(
        epoch=epoch,
        step=scheduler.step,
        load=rank,
        kv_sampled_slots=scheduler.fragmentation.num_allocated,
        kv_empty_slots=scheduler.fragmentation.num_empty,
    )
