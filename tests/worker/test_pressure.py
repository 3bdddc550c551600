"""The real scheduler over a real model in a pool that is far too small: the same tokens as alone."""

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_core.intake.validation import Limits
from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import Result, decode_result
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import engine_pb2, worker_pb2
from tests.eagle_heads import write_agreeing_pair
from tests.engine_core.fakes import Ledger, add_request, make, run
from tests.worker.fakes import initialize
from worker.load import load
from worker.platforms.cpu import CpuPlatform

Outputs = dict[tuple[int, int], list[int]]
BLOCK_SIZE = 4


class InProcess:
    """A scheduler and a worker with a model."""

    def __init__(
        self,
        folder: Path,
        *,
        blocks: int,
        swap_costs: SwapCosts | None,
        prefix_cache: bool,
        drafts: int = 0,
        method: str = "lookup",
        draft_model: Path | None = None,
        **changes: object,
    ) -> None:
        """swap_costs: None: no swap space. drafts: tokens per row. method: drafts them, with draft_model.
        changes: of Initialize."""
        options = "" if draft_model is None else f"{draft_model},"
        command = initialize(
            folder,
            num_blocks=blocks,
            max_num_seqs=8,
            swap_space_bytes=(1 << 20) if swap_costs else 0,
            speculation=f"{method}:{options}tokens={drafts}" if drafts else "",
            **changes,
        )
        self.num_accepted = 0
        self.runner, ready = load(command, CpuPlatform(WorkerConfig(threads=1)))
        self._results: deque[Result] = deque()
        self.scheduler = Scheduler(
            num_blocks=blocks,
            block_size=command.block_size,
            max_num_seqs=8,
            max_num_batched_tokens=24,
            prefix_cache=prefix_cache,
            state_checkpoints=ready.num_state_checkpoints,
            num_host_blocks=ready.num_host_blocks,
            swap_costs=swap_costs or SwapCosts(),
            samples_per_row=1 + drafts,
            speculative_tokens_per_step=16,
        )
        self.limits = Limits(ready.model.vocab_size, 60, 8, frozenset(), blocks, command.block_size)

    def submit(self, plan: Plan) -> None:
        """See engine_core.core.Worker. Without durations, so that the text alone decides what is drafted."""
        message = worker_pb2.StepPlan.FromString(encode_plan(plan).SerializeToString())
        result = decode_result(self.runner.execute(message), plan)._replace(duration_us=0)
        self.num_accepted += result.num_accepted_drafts
        self._results.append(result)

    def collect(self) -> Result:
        """See engine_core.core.Worker."""
        return self._results.popleft()

    def outputs(self, messages: list[engine_pb2.AddRequest], ahead: bool = False) -> Outputs:
        """What the sequences become, by (handle, index)."""
        ledger = Ledger()
        for message in messages:
            self.scheduler.add(make(message, self.limits))
        run(self.scheduler, self, ledger, ahead=ahead)
        assert self.scheduler.swap.num_free == self.scheduler.swap.num_blocks
        return dict(ledger.tokens)


def load_of_ten_pools(blocks: int) -> list[engine_pb2.AddRequest]:
    """Greedy and sampled requests of one and of several sequences, in two classes."""
    draw = random.Random(5)
    messages: list[engine_pb2.AddRequest] = []
    total = 0
    while total < 10 * blocks * BLOCK_SIZE:
        n, tokens = draw.choice([1, 1, 2, 4]), draw.randint(1, 28)
        prompt = [draw.randrange(3, 320) for _ in range(draw.randint(1, 24))]
        message = add_request(
            len(messages) + 1, prompt, n=n, max_tokens=tokens, priority=draw.choice([0, 0, 1])
        )
        message.sampling.temperature = draw.choice([0.0, 1.0])
        messages.append(message)
        total += len(prompt) + n * tokens
    return messages


@pytest.fixture(scope="module")
def alone(checkpoint: Callable[..., Path]) -> tuple[list[engine_pb2.AddRequest], Outputs]:
    """A load, and what each of its requests becomes with the whole engine to itself."""
    messages = load_of_ten_pools(16)
    engine = InProcess(checkpoint("llama"), blocks=200, swap_costs=None, prefix_cache=False)
    return messages, {key: tokens for each in messages for key, tokens in engine.outputs([each]).items()}


@pytest.mark.parametrize(
    ("swap_costs", "prefix_cache", "ahead"),
    [
        *((None, cached, not cached) for cached in (False, True)),
        *((SwapCosts(1.0, 0.0), cached, cached) for cached in (False, True)),
        *((SwapCosts(1.0, 1.7), cached, not cached) for cached in (False, True)),
    ],
    ids=[f"{name}-{cached}" for name in ("recompute", "swap", "whichever is cheaper") for cached in (0, 1)],
)
def test_the_same_tokens_as_alone(
    swap_costs: SwapCosts | None,
    prefix_cache: bool,
    ahead: bool,
    alone: tuple[list[engine_pb2.AddRequest], Outputs],
    checkpoint: Callable[..., Path],
):
    messages, expected = alone
    engine = InProcess(checkpoint("llama"), blocks=16, swap_costs=swap_costs, prefix_cache=prefix_cache)
    assert engine.outputs(messages, ahead) == expected
    preempted, swapped = engine.scheduler.num_preemptions, engine.scheduler.swap.num_swapped_out
    assert preempted > 5
    if swap_costs is None:
        assert not swapped
    elif not swap_costs.swap_us_per_block:
        assert swapped == preempted
    else:
        assert 0 < swapped < preempted


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    ("method", "ahead"), [("lookup", False), ("lookup", True), ("draft", True), ("heads", False)]
)
@pytest.mark.parametrize("swap_costs", [None, SwapCosts(1.0, 0.0)], ids=["recompute", "swap"])
def test_the_same_tokens_with_drafts(
    swap_costs: SwapCosts | None,
    ahead: bool,
    method: str,
    checkpoint: Callable[..., Path],
    tmp_path: Path,
):
    """Rows are preempted and resumed between drafts, with blocks that the prefix cache kept. Three tokens are
    allowed, so that runs of tokens occur again."""
    folder, bfloat16 = (
        checkpoint("llama", head_dim=32, hidden_size=64),
        {"dtype": "bfloat16", "block_size": 16},
    )
    draft_model = None
    if method == "draft":
        draft_model = checkpoint("llama", head_dim=32, hidden_size=64, num_hidden_layers=2)
    elif method == "heads":
        folder, draft_model = write_agreeing_pair(tmp_path, folder, noise=0.03)
    messages = load_of_ten_pools(16)
    for message in messages:
        message.sampling.allowed_token_ids[:] = [10, 11, 12]
    engine = InProcess(folder, blocks=64, swap_costs=None, prefix_cache=False, **bfloat16)
    expected = engine.outputs(messages)
    changes = {"drafts": 5, "method": method, "draft_model": draft_model, **bfloat16}
    drafting = InProcess(folder, blocks=5, swap_costs=swap_costs, prefix_cache=True, **changes)  # type: ignore[arg-type]
    assert drafting.outputs(messages, ahead) == expected
    assert drafting.num_accepted > 20 and drafting.scheduler.num_preemptions > 0


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    ("family", "sizes"), [("qwen3_5", {}), ("granite_hybrid", {"mamba_d_head": 64, "hidden_size": 128})]
)
def test_drafts_beside_states(family: str, sizes: dict[str, int], checkpoint: Callable[..., Path]):
    """Rows begin with states that others have saved, are preempted between drafts, and go on from their last
    checkpoint."""
    folder, settings = checkpoint(family, **sizes), {"dtype": "bfloat16", "block_size": 16}
    messages = load_of_ten_pools(16)
    for message in messages:
        message.sampling.allowed_token_ids[:] = [10, 11, 12]
    engine = InProcess(folder, blocks=64, swap_costs=None, prefix_cache=False, **settings)
    expected = engine.outputs(messages)
    settings |= {"drafts": 5, "state_checkpoints": 3}
    drafting = InProcess(folder, blocks=5, swap_costs=None, prefix_cache=True, **settings)  # type: ignore[arg-type]
    for _ in range(2):
        assert drafting.outputs(messages, ahead=True) == expected
    assert drafting.num_accepted > 20 and drafting.scheduler.num_preemptions > 0
    assert drafting.scheduler.prefix_cache.hit_rate.num_found > 0


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    ("family", "sizes", "quantization", "swaps"),
    [
        ("youtu", {}, "", True),
        ("gpt_oss", {"head_dim": 32}, "int4", True),
        ("qwen3_5", {}, "", False),
        ("granite_hybrid", {"mamba_d_head": 64, "hidden_size": 128}, "", False),
    ],
    ids=["latents", "windows, sinks, experts in 4 bits", "a delta net", "Mamba-2"],
)
def test_the_same_tokens_of_other_caches(
    family: str, sizes: dict[str, int], quantization: str, swaps: bool, checkpoint: Callable[..., Path]
):
    """What is swapped comes back bit for bit; of layers that keep a state, rows are computed again."""
    folder = checkpoint(family, **sizes)
    settings: dict[str, object] = {"dtype": "bfloat16", "block_size": 16, "quantization": quantization}
    messages = load_of_ten_pools(8)
    engine = InProcess(folder, blocks=64, swap_costs=None, prefix_cache=False, **settings)
    expected = engine.outputs(messages)
    costs = SwapCosts(1.0, 0.0) if swaps else None
    small = InProcess(folder, blocks=5, swap_costs=costs, prefix_cache=swaps, **settings)
    assert small.outputs(messages, ahead=True) == expected
    assert small.scheduler.num_preemptions > 0
    assert bool(small.scheduler.swap.num_swapped_out) == swaps
