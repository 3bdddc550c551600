"""Engine cores one after another over one worker, in process: each is killed, the next adopts it."""

from collections import deque
from collections.abc import Mapping

from engine_core.intake.validation import Limits
from engine_core.kv_cache.cache_changes import KeptChanges
from engine_core.scheduler.outputs.outputs import encode_outputs
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import decode_result
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.ipc.columns import pack_u32
from tests.checkpoints import EOS_ID, VOCAB_SIZE
from tests.engine_core.fakes import Ledger, make
from worker.cache_contents import CacheContents
from worker.loop import StepRunner

SECRET = b"s" * 32


class Lives:
    """A runner, and one scheduler after another that plans ahead for it."""

    def __init__(self, runner: StepRunner, ready: worker_pb2.Ready, sizes: Mapping[str, int]) -> None:
        """sizes: max_num_seqs and block_size of the Initialize that the runner was loaded by."""
        self.runner, self.ready = runner, ready
        self.num_rows, self.block_size = sizes["max_num_seqs"], sizes["block_size"]
        self.contents, self.ledger = CacheContents(SECRET), Ledger()
        self.num_found = 0

    def live(self, messages: list[engine_pb2.AddRequest], steps: int) -> None:
        """Goes on with what is not finished, for so many steps at most; the last ones have no reader."""
        rows, size = self.num_rows, self.block_size
        scheduler = Scheduler(
            num_blocks=self.ready.num_blocks,
            block_size=size,
            max_num_seqs=rows,
            max_num_batched_tokens=12,
            state_checkpoints=self.ready.num_state_checkpoints,
        )
        changes, plans = KeptChanges(), deque[Plan]()
        scheduler.prefix_cache.secret = SECRET
        scheduler.track_cache(changes, self.contents.hand_over())
        self.ledger.started.clear()
        self.ledger.cached.clear()
        limits = Limits(VOCAB_SIZE, 96, rows, frozenset([EOS_ID]), self.ready.num_blocks, size)
        for message in messages:
            if (message.handle, 0) not in self.ledger.ends:
                del message.delivered[:]
                message.delivered.add(token_ids=pack_u32(self.ledger.tokens[message.handle, 0]))
                scheduler.add(make(message, limits))
        for _ in range(steps):
            plan = scheduler.schedule(0.0)
            if plan.rows:
                self.contents.apply(changes.take())
                self.runner.launch(worker_pb2.StepPlan.FromString(encode_plan(plan).SerializeToString()))
                plans.append(plan)
            if len(plans) > 1 or (plans and not plan.rows):
                scheduler.update(decode_result(self.runner.finish(), plans.popleft()))
            for _, message in encode_outputs(scheduler.take_outputs(), 1, scheduler.step):
                self.ledger.take(message)
            if not scheduler.requests and not scheduler.in_flight:
                break
        self.num_found += scheduler.prefix_cache.hit_rate.num_found
        self.runner.abandon()
