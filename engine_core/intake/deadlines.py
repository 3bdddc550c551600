"""Deadline-aware refusal: a request that cannot start in time is refused at once, and may be sent elsewhere.

The wait until a request is first scheduled is predicted from what is ahead of it in the queue (see
WaitingQueue.ahead) and from the engine's throughput. Three resources can be short; the scarcest decides:

    wait    = max(prompts, rows, blocks)
    prompts = tokens to compute ahead / tokens of prompts per second
    rows    = (sequences ahead + its own - free rows)    / all rows   * turnover
    blocks  = (blocks for those ahead + its own - free blocks) / all blocks * turnover

The turnover is the mean time for which a sequence holds its row and its blocks: in that time all of them are
reassigned once. A sequence ahead holds blocks for its prompt and, on average over its life, for half of its
output; and one free block is kept for each running sequence, as the scheduler does. What is not measured yet
counts as no wait: no request is refused on a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_core.errors import Code, Refused
from engine_core.queue.base import Ahead
from engine_core.request import Request
from pagewire.retry_after import LATEST_S, SOONEST_S

if TYPE_CHECKING:
    from engine_core.scheduler.scheduler import Scheduler

REASON = "DEADLINE_UNREACHABLE"


def check_deadline(request: Request, wait: float, now: float) -> None:
    """Raises Refused if a request that arrives now would not be scheduled before its deadline.

    wait: the predicted wait in seconds.
    """
    if request.deadline_at is None:
        return
    left = request.deadline_at - now
    if left <= 0 or wait <= left:  # a deadline that has passed already is left to the scheduler's timeouts
        return
    raise Refused(
        "",
        f"the request would wait for {wait:.1f} s, but its deadline is in {left:.1f} s",
        REASON,
        Code.RESOURCE_EXHAUSTED,
        retry_after=min(max(wait - left, SOONEST_S), LATEST_S),
    )


def predicted_wait(request: Request, scheduler: Scheduler, ahead: Ahead | None = None) -> float:
    """Returns the seconds until a request is first scheduled. ahead: of it; None: it arrives now."""
    throughput = scheduler.throughput
    output = throughput.run_steps.value
    if ahead is None:
        ahead = scheduler.waiting.ahead(request, output)
    wait = throughput.prompt_seconds(ahead.tokens) or 0.0
    turnover = throughput.turnover_seconds
    if turnover is None:
        return wait
    first, tables, pool = request.sequences[0], scheduler.tables, scheduler.pool
    own_rows = scheduler.planner.admission.rows_needed(first)
    rows = ahead.sequences + own_rows - len(scheduler.rows.free)
    own_blocks = tables.missing(first.num_tokens + 1, scheduler.prefix_cache.find(first)) + own_rows - 1
    blocks_ahead = (ahead.tokens + ahead.sequences * output / 2) / tables.block_size
    blocks = blocks_ahead + own_blocks + len(scheduler.running) - pool.num_free
    shortage = max(rows / scheduler.num_rows, blocks / pool.num_blocks, 0.0)
    return max(wait, shortage * turnover)
