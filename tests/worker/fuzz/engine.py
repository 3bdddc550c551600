"""A scheduler and a worker with a model in one process, and what becomes of a load in one way or another."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_core.intake.validation import Limits
from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import Result, decode_result
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.engine_core.fakes import Ledger, add_request, make, run
from tests.worker.fakes import initialize
from worker.load import load
from worker.platforms.cpu import CpuPlatform

ROWS = 8
CONTEXT = 96


@dataclass(frozen=True)
class Way:
    """How the scheduler works: by default in the plainest way."""

    name: str
    budget: int = 512  # tokens of a step
    blocks: int = 0  # of the pool; 0: for all
    swap: bool = False
    cached: bool = False
    ahead: bool = False
    alone: bool = False  # one request after the other
    threads: int = 1
    resumed: bool = False  # with the first tokens delivered already
    speculation: str = ""
    burst: int = 0  # most steps of a plan; 0: one


@dataclass
class Told:
    """What clients have in the end: all of it must be the same in all ways."""

    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    ends: dict[tuple[int, int], Any] = field(default_factory=dict)
    scores: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    prompt_scores: dict[int, list[Any]] = field(default_factory=dict)

    def add(self, ledger: Ledger) -> None:
        """Takes in what a ledger holds."""
        self.tokens |= ledger.tokens
        self.ends |= ledger.ends
        self.scores |= {key: scores for key, scores in ledger.scores.items() if scores}
        self.prompt_scores |= ledger.prompt_scores


class FuzzEngine:
    """See the module."""

    def __init__(self, folder: Path, way: Way, block_size: int, **changes: object) -> None:
        """changes: of Initialize."""
        needed = ROWS * (-(-CONTEXT // block_size) + 1)
        blocks = way.blocks or 2 * needed
        command = initialize(
            folder,
            num_blocks=blocks,
            block_size=block_size,
            max_num_seqs=ROWS,
            max_num_batched_tokens=way.budget,
            max_model_len=CONTEXT,
            swap_space_bytes=(1 << 22) if way.swap else 0,
            speculation=way.speculation,
            state_checkpoints=3 if way.cached else 0,
            **changes,
        )
        self.way, self.num_accepted = way, 0
        self.runner, self.ready = load(command, CpuPlatform(WorkerConfig(threads=way.threads)))
        self._results: deque[Result] = deque()
        drafts = 4 if way.speculation else 0
        self.scheduler = Scheduler(
            num_blocks=blocks,
            block_size=block_size,
            max_num_seqs=ROWS,
            max_num_batched_tokens=way.budget,
            prefix_cache=way.cached and not self.ready.depends_on_prompt_len,
            state_checkpoints=self.ready.num_state_checkpoints,
            num_host_blocks=self.ready.num_host_blocks,
            swap_costs=SwapCosts(1.0, 0.0) if way.swap else SwapCosts(),
            samples_per_row=1 + drafts,
            speculative_tokens_per_step=12 if drafts else 0,
            burst_seconds=way.burst / 1000,
        )
        vocab = self.ready.model.vocab_size
        self.limits = Limits(vocab, CONTEXT, ROWS, frozenset(), blocks, block_size)

    def submit(self, plan: Plan) -> None:
        """See engine_core.core.Worker. Without durations, so that the text alone decides what is drafted; for
        bursts, a step takes a millisecond."""
        message = worker_pb2.StepPlan.FromString(encode_plan(plan).SerializeToString())
        result = decode_result(self.runner.execute(message), plan)
        steps = max(result.sample_counts, default=1)
        result = result._replace(duration_us=1000 * steps if self.way.burst else 0)
        self.num_accepted += result.num_accepted_drafts
        self._results.append(result)

    def collect(self) -> Result:
        """See engine_core.core.Worker."""
        return self._results.popleft()

    def outputs(self, messages: Sequence[engine_pb2.AddRequest]) -> Told:
        """What the requests become."""
        told = Told()
        for group in [[each] for each in messages] if self.way.alone else [messages]:
            ledger = Ledger()
            for message in group:
                for part in message.delivered:
                    ledger.tokens[message.handle, part.index] = unpack_u32(part.token_ids)
                self.scheduler.add(make(message, self.limits))
            run(self.scheduler, self, ledger, ahead=self.way.ahead)  # type: ignore[arg-type]
            told.add(ledger)
        return told


def resumed(messages: Sequence[engine_pb2.AddRequest], told: Told) -> list[engine_pb2.AddRequest]:
    """The requests as another engine gets them, when about half of their output is delivered."""
    again = []
    for message in messages:
        if message.HasField("prompt_logprobs"):
            continue
        copy = engine_pb2.AddRequest.FromString(message.SerializeToString())
        for index in range(message.sampling.n):
            output = told.tokens[message.handle, index]
            copy.delivered.add(index=index, token_ids=pack_u32(output[: len(output) // 2]))
        again.append(copy)
    return again


def draw_load(vocab: int, draw: random.Random) -> list[engine_pb2.AddRequest]:
    """Greedy and sampled requests, of one and of several sequences, some with a common beginning."""
    system = [draw.randrange(3, vocab) for _ in range(draw.choice([7, 21, 35]))]
    few = [draw.randrange(3, vocab) for _ in range(3)]
    messages = []
    for handle in range(1, 9):
        length = draw.choice([1, 2, draw.randint(3, 50)])
        prompt = [draw.randrange(3, vocab) for _ in range(length)]
        if handle % 3 == 0:
            prompt = system + prompt[:9]
        message = add_request(
            handle,
            prompt,
            n=3 if handle == 4 else 1,
            max_tokens=draw.randint(1, 24),
            logprobs=LogprobOptions(top_n=2) if handle % 2 else None,
            prompt_logprobs=LogprobOptions(top_n=1) if handle in (5, 6) and len(prompt) > 1 else None,
            prompt_logprobs_start=1 if handle in (5, 6) and len(prompt) > 1 else 0,
        )
        message.sampling.temperature = draw.choice([0.0, 0.0, 1.0])
        if handle % 4 == 3:
            message.sampling.allowed_token_ids[:] = sorted(set(few))
        messages.append(message)
    return messages
