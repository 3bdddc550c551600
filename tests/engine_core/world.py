"""A scheduler, a fake worker and what frontends hold, in one object, for tests of single scenarios."""

import dataclasses

from engine_core.kv_cache.host_swap import UNMEASURED, SwapCosts
from engine_core.queue.base import FAIR
from engine_core.queue.token_counters import EQUAL, Weights
from engine_core.request import Request
from engine_core.scheduler.planning.adapter_slots import TURN
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan
from pagewire.internal.v1.engine_pb2 import AddRequest
from tests.engine_core.fakes import (
    LIMITS,
    FakeWorker,
    Ledger,
    add_request,
    expected_output,
    make,
    namespace,
    run,
)


class World:
    """A scheduler, its worker and its frontends."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        block_size: int = 4,
        rows: int = 8,
        budget: int = 64,
        prefix_cache: bool = True,
        ahead: bool = False,
        host_blocks: int = 0,
        swap_costs: SwapCosts = UNMEASURED,
        policy: str = FAIR,
        weights: Weights = EQUAL,
        samples_per_row: int = 1,
        speculative_tokens_per_step: int = 0,
        preempt_rows: bool = False,
        share_rows: bool = False,
        state_checkpoints: int = 0,
        burst_seconds: float = 0.0,
        max_adapters: int = 0,
        adapter_turn: int = TURN,
        whole_prompts: bool = False,
        encoder_cache: int = 0,
        encoder_budget: int = 0,
        whole_media: bool = False,
        stages: int = 1,
    ) -> None:
        """ahead: finish() plans ahead; step() never does."""
        self.ahead = ahead
        self.scheduler = Scheduler(
            num_blocks=blocks,
            block_size=block_size,
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
            prefix_cache=prefix_cache,
            num_host_blocks=host_blocks,
            swap_costs=swap_costs,
            policy=policy,
            weights=weights,
            samples_per_row=samples_per_row,
            speculative_tokens_per_step=speculative_tokens_per_step,
            preempt_rows=preempt_rows,
            share_rows=share_rows,
            state_checkpoints=state_checkpoints,
            burst_seconds=burst_seconds,
            max_adapters_per_step=max_adapters,
            adapter_turn=adapter_turn,
            whole_prompts=whole_prompts,
            encoder_cache_tokens=encoder_cache,
            max_num_encoder_tokens=encoder_budget,
            whole_media=whole_media,
            stages=stages,
        )
        self.worker = FakeWorker(blocks, block_size, host_blocks)
        self.worker.num_drafts = 99 if samples_per_row > 1 else 0
        self.worker.whole_media = whole_media
        self.worker.step_us, self.worker.max_adapters = 1000, max_adapters
        self.worker.encoder_capacity, self.worker.encoder_budget = (
            encoder_cache or budget,
            encoder_budget or budget,
        )
        self.ledger = Ledger()
        self.messages: dict[int, AddRequest] = {}

    def add(
        self, handle: int = 1, prompt: int | list[int] = 5, arrival: float = 0.0, **options: object
    ) -> Request:
        return self.take(add_request(handle, prompt, **options), arrival)  # type: ignore[arg-type]

    def take(self, message: AddRequest, arrival: float = 0.0) -> Request:
        handle = message.handle
        num_rows = self.scheduler.num_rows
        limits = dataclasses.replace(LIMITS, max_num_seqs=num_rows, input_embedding_size=4)
        self.messages[handle] = message
        self.worker.adapters.add(message.adapter.digest)
        self.worker.namespaces[handle] = namespace(message)
        for part in message.delivered:
            self.ledger.tokens[handle, part.index] = list(memoryview(part.token_ids).cast("I"))
        request = make(message, limits, arrival=arrival)
        self.scheduler.add(request)
        return request

    def step(self, steps: int = 1, now: float = 0.0) -> Plan:
        """Runs so many steps; returns the plan of the last one."""
        assert run(self.scheduler, self.worker, self.ledger, steps=steps, now=now) == steps
        return self.worker.plans[-1]

    def finish(self) -> None:
        """Runs all requests to their ends, and checks that they are right and leave nothing behind."""
        run(self.scheduler, self.worker, self.ledger, ahead=self.ahead)
        for handle, message in self.messages.items():
            for index in range(message.sampling.n):
                output, reason = expected_output(message, index)
                assert self.ledger.tokens[handle, index] == output
                assert self.ledger.ends[handle, index] is reason
                self.ledger.check_scores(message, index)
            self.ledger.check_vector(message)
        self.assert_empty()

    def assert_empty(self) -> None:
        scheduler = self.scheduler
        assert not scheduler.requests and not scheduler.waiting and not scheduler.num_running_requests
        assert scheduler.pool.num_free == scheduler.pool.num_blocks
        assert len(scheduler.rows.free) == scheduler.num_rows
        assert scheduler.swap.num_free == scheduler.swap.num_blocks


def columns(plan: Plan) -> list[tuple[int, int]]:
    """(start, count) of each row that computes."""
    return list(zip(plan.starts, plan.counts, strict=True))
