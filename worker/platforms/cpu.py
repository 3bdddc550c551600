"""A CPU: compiled kernels where it has some, torch where not, and drafters with weights of their own."""

import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kernels.api import CacheLayout
from kernels.cpu import instruction_sets
from kernels.cpu.sampling.api import sampling_kernels
from pagewire import __version__
from pagewire.config import WorkerConfig
from pagewire.host.resources import available_memory
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.adapters.load import load_adapter
from worker.adapters.rows import AdapterRows
from worker.adapters.store import AdapterStore
from worker.cpu.backend import CpuBackend
from worker.cpu.malloc_tuning import release_startup_memory
from worker.cpu.precompile import Precompiled
from worker.cpu.rank_checks import check_ranks, divide_stages
from worker.cpu.rank_group import make_groups
from worker.cpu.rank_memory import join, model_digest
from worker.cpu.rank_peers import RankPeers
from worker.cpu.rank_runner import with_times_of_first
from worker.cpu.threads import choose_threads, own_cores
from worker.cpu.weights import CPU, CpuModel, load_cpu_weights, with_kernels
from worker.executor.executor import StepExecutor
from worker.grammar.rows import GrammarRows
from worker.grammar.tokenizer import GrammarsToCome
from worker.group_shape import group_shape
from worker.kv_transfer.memory import BlockMemory, PoolMemory
from worker.meeting import Meeting
from worker.memory.kv_cache import KVCache, await_freed_memory, block_bytes, choose_num_blocks
from worker.memory.populate import claim_large
from worker.memory.row_states import RowStates, states_bytes
from worker.memory.swap_space import SwapSpace, make_swap_space
from worker.models.base import LanguageModel
from worker.models.staged import StagedModel
from worker.parallel import ALONE, Groups
from worker.platforms.base import LoadedModel, LoadPlan, Platform
from worker.pooling.heads import read_heads
from worker.pooling.vectors import Floats
from worker.sampling.of_ranks import make_sampler
from worker.speculation.models.draft_model import read_draft_model
from worker.speculation.models.head import read_head
from worker.speculation.models.loaded import DrafterPlan, LoadedDrafter
from worker.speculation.options import check_exactness, make_speculator
from worker.startup.checks import check_stages, refuse_fast_matmul
from worker.startup.model import dtype_name, model_bytes, stored_dtype, tokens_per_vector
from worker.step.warmup_plans import Execute, decode_plan, draft_plan, prefill_plan, removal_plan
from worker.weights.prefault import WeightsMemory

logger = logging.getLogger(__name__)


_MICRO_BATCH_ROWS = 16
"""Groups of 4 made 0.82 to 0.91 times the tokens of one plan on two cores: a step of fewer rows takes nearly
as long, and each has its share of messages and waking (docs/lab-book.md)."""


class CpuPlatform(Platform[CpuBackend]):
    """The CPU cores of this process."""

    name = "cpu"

    def __init__(
        self,
        worker: WorkerConfig,
        precompiled: Precompiled | None = None,
        memory: WeightsMemory | None = None,
        meeting: Meeting | None = None,
    ) -> None:
        """precompiled: kernels that other processes compile meanwhile. memory: for the weights. meeting: of a
        group over several hosts."""
        super().__init__(worker)
        self._precompiled, self._memory, self._meeting = precompiled, memory, meeting
        self._pinned = bool(worker.cores)  # no other process runs on them

    def check(self, initialize: worker_pb2.Initialize) -> None:
        refuse_fast_matmul(initialize.fast_matmul, self.name)

    def load_model(self, plan: LoadPlan) -> "LoadedOnCpu":
        initialize, config, report = plan.initialize, plan.config, plan.report
        drafter = read_drafter(plan) if self.worker.rank == 0 else None
        groups = self._join(plan)  # by compiled code, which must not run while other code is loaded
        if self._precompiled is not None:
            self._precompiled.begin()
        weights = load_cpu_weights(initialize, config, report, self._memory, groups)
        if drafter is not None:
            drafter.capture(weights.model)
        self._set_threads(weights.model, workers_on_host(initialize))
        if self._precompiled is not None:
            self._precompiled.wait(report)
        if groups.stage.count > 1 and initialize.speculation.method == engine_pb2.DRAFT_METHOD_HEADS:
            capture_in_stages(weights.model, groups)
        computing = with_kernels(initialize, config, weights, report, self._pinned)
        check_exactness(plan.speculation, computing.exactness)
        draft = None
        if drafter is not None:
            draft = drafter.load(weights.model, computing.dtype, report, self._pinned)
        facts = computing.exactness, dtype_name(computing.dtype), computing.quantization
        weight_bytes, takes_over = model_bytes(computing.model), bool(self.worker.standby)
        return LoadedOnCpu(plan, *facts, weight_bytes, computing, draft, takes_over, groups)

    def _join(self, plan: LoadPlan) -> Groups:
        """Returns the groups of this rank, once all ranks are here and are found alike. Raises StartupError
        before weights are read."""
        initialize = plan.initialize
        tensor, stages = group_shape(initialize)
        if tensor * stages == 1:
            return ALONE
        check_stages(plan.config, stages)
        model = check_ranks(plan.config, tensor, initialize.quantization)
        starts = divide_stages(plan.config, model, stages) if stages > 1 else ()
        chosen = instruction_sets.target_set()
        rank, meeting = self.worker.rank, self._meeting
        ranks: RankPeers
        if meeting is None:
            ranks = join(initialize, rank, plan.report)
        else:
            from worker.cpu.rank_hosts import join_hosts  # with torch.distributed

            ranks = join_hosts(initialize, rank, meeting, plan.report)
        self.ranks = ranks
        ranks.check_equal(
            {
                "pagewire": __version__,
                "instruction set": chosen.name if chosen is not None else "none",
                "dtype": initialize.dtype,
                "model": model_digest(Path(initialize.model_path)),
            },
            meeting.host if meeting is not None else "",
        )
        return make_groups(ranks, tensor, starts)

    def _set_threads(self, model: LanguageModel, num_workers: int) -> None:
        """Sets the number of torch's threads, which the compiled kernels take over."""
        cores = own_cores(max(1, num_workers), self._pinned)
        torch.set_num_threads(choose_threads(self.worker.threads, model_bytes(model), cores))


def workers_on_host(initialize: worker_pb2.Initialize) -> int:
    """Returns how many workers, this one included, share the processors and the memory."""
    ranks = math.prod(group_shape(initialize)) // max(1, initialize.num_hosts)
    return max(1, initialize.data_parallel_size) * ranks


def read_drafter(plan: LoadPlan) -> DrafterPlan | None:
    """Returns the draft model or head that --speculate names; None: it names none. Raises StartupError where
    it does not fit the target."""
    method = plan.initialize.speculation.method
    if method == engine_pb2.DRAFT_METHOD_DRAFT:
        return read_draft_model(plan.initialize, plan.config, plan.max_model_len)
    return read_head(plan.initialize, plan.config) if method == engine_pb2.DRAFT_METHOD_HEADS else None


def capture_in_stages(model: LanguageModel, groups: Groups) -> None:
    """Has all stages keep the hidden states that the head of rank 0 reads, as rank 0 does: others have no
    files of the head. Exchanges something with other ranks."""
    assert isinstance(model, StagedModel)
    wanted = np.zeros(1 + groups.stage.starts[-1], np.int64)  # behind so many blocks
    if model.capturing is not None:
        wanted[list(model.capturing.after)] = 1
    found = np.flatnonzero(groups.world.tell(wanted)).tolist()
    if model.capturing is None:
        model.capture(found)


@dataclass(frozen=True)
class LoadedOnCpu(LoadedModel[CpuBackend]):
    """A model on the CPU."""

    computing: CpuModel
    draft: LoadedDrafter | None
    takes_over: bool  # streams wait for this worker, which does not wait for the pages of its cache
    groups: Groups

    def make_executor(self, grammars: GrammarsToCome) -> StepExecutor[CpuBackend]:
        initialize = self.plan.initialize
        self.plan.report("KV cache", 0.0)
        if self.takes_over:
            await_freed_memory()
        cache = self._make_cache()
        beside = self.draft.host_block_bytes if self.draft is not None else 0
        swap_bytes = 0 if self.plan.config.has_states else initialize.swap_space_bytes
        swap_space = make_swap_space(swap_bytes, cache, beside)
        return self._assemble(cache, swap_space, grammars.rows(self.plan.report))

    @property
    def tokens_per_vector(self) -> int:
        return tokens_per_vector(self.computing.model)

    def _make_cache(self) -> KVCache:
        """Returns the KV cache, as large as requested or as fits beside that of a draft model, and states."""
        plan, model, dtype, draft = self.plan, self.computing.model, self.computing.dtype, self.draft
        initialize, specs = plan.initialize, model.kv_cache_specs()
        rows, size, stored = initialize.max_num_seqs, initialize.block_size, stored_dtype(initialize, dtype)
        checkpoints, vision = initialize.state_checkpoints, model.vision
        encoder = 0 if vision is None else vision.activation_bytes(initialize) + vision.kept_bytes(initialize)
        with draft.names_both() if draft is not None else nullcontext():
            num_blocks = choose_num_blocks(
                initialize.num_blocks,
                block_bytes(specs, size, stored) + (draft.block_bytes if draft is not None else 0),
                rows,
                plan.max_model_len,
                size,
                num_workers=workers_on_host(initialize),
                requested_bytes=initialize.kv_cache_bytes,
                num_threads=torch.get_num_threads(),
                reserved=states_bytes(model.state_specs(), rows, checkpoints, plan.most_drafts) + encoder,
            )
        num_blocks = self.groups.world.least(num_blocks)
        each_alone = not self.exactness.caveat  # the bits that are promised depend on positions alone
        return KVCache(specs, CacheLayout(size, num_blocks, dtype, CPU, each_alone, stored))

    def _assemble(
        self, cache: KVCache, swap_space: SwapSpace, grammars: GrammarRows
    ) -> StepExecutor[CpuBackend]:
        """Returns what executes steps on this cache."""
        plan, model = self.plan, self.computing.model
        rows = plan.make_rows(cache.num_blocks)
        ops = sampling_kernels(torch.get_num_threads())
        world = self.groups.world
        sampler = make_sampler(world, rows.max_num_rows, rows.vocab_size, CPU, ops, grammars)
        drafter = observe = None
        drafter_tensors: list[torch.Tensor] = []
        if self.draft is not None:
            drafting = self.draft.make_drafter(rows, swap_space.num_blocks, model)
            drafter, observe, drafter_tensors = drafting
        specs, checkpoints = model.state_specs(), plan.initialize.state_checkpoints
        states = RowStates(specs, rows.max_num_rows, CPU, checkpoints, plan.most_drafts) if specs else None
        blocks = self.computing.blocks
        size, dtype = plan.config.input_embedding_size, cache.layout.dtype
        adapters = AdapterRows(AdapterStore(model, load_adapter, size, dtype))
        backend = CpuBackend(model, cache, swap_space, rows, sampler, blocks, observe, states, adapters)
        backend.may_retry = world.size == 1
        backend.drafter_tensors = drafter_tensors
        rank, tell = world.rank, world.tell if world.size > 1 else None
        speculator = make_speculator(plan.speculation, rows, grammars, drafter, states, rank, tell)
        most_tokens = plan.initialize.max_num_batched_tokens
        loader = adapters.store if model.target_modules else None
        logits = self._logits if self.groups.stage.is_first else _no_logits(plan.config.vocab_size)
        heads = read_heads(plan.initialize, plan.config.state_size, logits)
        return StepExecutor(rows, backend, most_tokens, speculator, loader, heads)

    def _logits(self, states: Floats) -> Floats:
        """Returns the logits [N, V] of the embedding for states [N, E], which need not be the model's."""
        with torch.inference_mode():
            found = self.computing.model.logits(torch.from_numpy(states).to(self.computing.dtype))
            logits: Floats = found.float().numpy()
            return logits

    def warm_up(self, executor: StepExecutor[CpuBackend]) -> None:
        release_startup_memory()
        claim = claim_large("KV cache", executor.backend.tensors, available_memory())
        self.groups.world.least(0)  # all ranks are here: one that waits in a program reports nothing
        self.plan.report("warm-up", 0.0)
        warm_up(executor)
        if claim is not None:
            (claim.log_failure if self.takes_over else claim.wait)()

    def timed(self, executor: StepExecutor[CpuBackend]) -> Execute:
        return with_times_of_first(self.groups.world, executor.execute)

    def cache_bytes(self, executor: StepExecutor[CpuBackend]) -> int:
        return executor.backend.cache.num_bytes

    def swap_us_per_block(self, executor: StepExecutor[CpuBackend]) -> float:
        return executor.backend.swap_space.measure_us_per_block()

    def block_memory(self, executor: StepExecutor[CpuBackend]) -> BlockMemory | None:
        """None where a prefix is more than its blocks: with states, a draft model's cache, or other ranks."""
        if self.groups.world.size > 1 or self.draft is not None or self.plan.config.has_states:
            return None
        return PoolMemory([pool.view(torch.uint8).numpy() for pool in executor.backend.cache.pools])

    def finish(self, executor: StepExecutor[CpuBackend], ready: worker_pb2.Ready) -> None:
        ready.num_threads = torch.get_num_threads()
        if self.plan.speculation is None:
            ready.stages, ready.micro_batch_rows = executor.backend.stages, _MICRO_BATCH_ROWS
        logger.info(
            "%s%s in %s%s: %.0f MiB of weights, %d KV blocks%s (%.0f MiB), %d threads",
            self.groups.describe(self.plan.config.num_layers),
            ready.model.architecture,
            self.dtype_name,
            f", weights in {self.quantization}" if self.quantization else "",
            self.weight_bytes / 2**20,
            ready.num_blocks,
            f" in {ready.model.kv_cache_dtype}" if ready.model.kv_cache_dtype else "",
            ready.kv_cache_bytes / 2**20,
            ready.num_threads,
        )


def _no_logits(vocab_size: int) -> Callable[[Floats], Floats]:
    """Returns what stands for the logits of states on a rank without a head, whose answers are not read."""
    return lambda states: np.zeros((len(states), vocab_size), np.float32)


def warm_up(executor: StepExecutor[CpuBackend]) -> None:
    """Computes one token of a prompt, one more, and one that is drafted: torch and the kernels set up on
    their first use what a request would otherwise wait for. The row is removed again."""
    rows = executor.rows
    if rows.max_model_len < 2:
        return
    first = prefill_plan([1], rows.block_size)
    executor.execute(first)
    if rows.block_size > 1 and rows.max_model_len > 2:
        executor.execute(decode_plan([1]))
    if executor.drafts and rows.block_size > 3 and rows.max_model_len > 4:
        executor.execute(draft_plan([2]))
    executor.execute(removal_plan(first))
    if executor.backend.stages > 1:
        first.micro_batch = True
        executor.execute(first)
        executor.execute(removal_plan(first))
