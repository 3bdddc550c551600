"""From `Initialize` to an executor on a CPU: configuration, weights, kernels, KV cache, warm-up.
worker.cuda.startup.load is the same on a GPU."""

import logging
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from kernels.api import CacheLayout
from kernels.cpu.sampling.api import sampling_kernels
from pagewire.host.memory import available_memory
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.config.hf_config import ModelConfig
from worker.cpu.backend import CpuBackend
from worker.cpu.malloc_tuning import release_startup_memory
from worker.cpu.precompile import Precompiled
from worker.cpu.threads import choose_threads, own_cores
from worker.cpu.weights import CpuModel, load_cpu_weights, with_kernels
from worker.executor.executor import StepExecutor
from worker.grammar.rows import GrammarRows
from worker.grammar.tokenizer import GrammarsToCome
from worker.memory.kv_cache import (
    KVCache,
    await_freed_memory,
    block_bytes,
    choose_num_blocks,
)
from worker.memory.populate import claim_large
from worker.memory.row_states import RowStates, states_bytes
from worker.memory.swap_space import SwapSpace, make_swap_space
from worker.models.base import LanguageModel
from worker.sampling.sampler import Sampler
from worker.speculation.models.draft_model import read_draft_model
from worker.speculation.models.head import read_head
from worker.speculation.models.loaded import DrafterPlan, LoadedDrafter
from worker.speculation.options import check_exactness, make_speculator, read_speculation
from worker.startup.checks import check_cache_dtype, check_group, choose_max_model_len, refuse_fast_matmul
from worker.startup.implementation import choose_implementation
from worker.startup.model import Report, dtype_name, model_bytes
from worker.startup.ready import make_ready, stored_dtype
from worker.step.prefill_speed import measure_prefill
from worker.step.rows import RowTable
from worker.step.warmup_plans import decode_plan, draft_plan, prefill_plan, removal_plan
from worker.weights.prefault import WeightsMemory

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")


def load(
    initialize: worker_pb2.Initialize,
    rank: int,
    threads: int,
    report: Report,
    pinned: bool = False,
    precompiled: Precompiled | None = None,
    memory: WeightsMemory | None = None,
    *,
    takes_over: bool = False,
) -> tuple[StepExecutor[CpuBackend], worker_pb2.Ready]:
    """threads: as requested, 0 to choose. pinned: the process's cores are its own. precompiled: kernels that
    other processes compile meanwhile. memory: for the weights. takes_over: streams wait for this worker,
    which does not wait for the pages of its cache. Raises StartupError when anything does not fit."""
    check_group(rank, initialize.tensor_parallel_size)
    refuse_fast_matmul(initialize.fast_matmul, "cpu")
    speculation = read_speculation(initialize, "cpu")
    config = choose_implementation(initialize, "cpu")
    check_cache_dtype(initialize.kv_cache_dtype, config)
    max_model_len = choose_max_model_len(initialize.max_model_len, config)
    plan = read_drafter(initialize, config, max_model_len)
    grammars = GrammarsToCome(initialize, config.vocab_size, config.eos_token_ids)
    if precompiled is not None:
        precompiled.begin()
    weights = load_cpu_weights(initialize, config, report, memory)
    if plan is not None:
        plan.capture(weights.model)
    _set_threads(weights.model, threads, initialize.data_parallel_size, pinned)
    if precompiled is not None:
        precompiled.wait(report)
    computing = with_kernels(initialize, config, weights, report, pinned)
    loaded = Loaded(initialize, config, max_model_len, computing)
    check_exactness(speculation, computing.exactness)
    draft = None if plan is None else plan.load(weights.model, computing.dtype, report, pinned)
    report("KV cache", 0.0)
    if takes_over:
        await_freed_memory()
    cache = loaded.make_cache(draft, speculation)
    beside = draft.host_block_bytes if draft is not None else 0
    swap_bytes = 0 if config.has_states else initialize.swap_space_bytes
    swap_space = make_swap_space(swap_bytes, cache, beside)
    executor = loaded.make_executor(cache, swap_space, speculation, grammars.rows(report), draft)
    release_startup_memory()
    claim = claim_large("KV cache", executor.backend.tensors, available_memory())
    report("warm-up", 0.0)
    warm_up(executor)
    if claim is not None:
        (claim.log_failure if takes_over else claim.wait)()
    ready = _ready(loaded, executor, cache, swap_space)
    if speculation is not None:
        ready.draft_tokens, ready.draft_batch = speculation.tokens, speculation.batch
    return executor, ready


def read_drafter(
    initialize: worker_pb2.Initialize, target: ModelConfig, max_model_len: int
) -> DrafterPlan | None:
    """Returns the draft model or head that --speculate names; None: it names none. Raises StartupError where
    it does not fit the target."""
    if initialize.speculation.method == engine_pb2.DRAFT_METHOD_DRAFT:
        return read_draft_model(initialize, target, max_model_len)
    if initialize.speculation.method == engine_pb2.DRAFT_METHOD_HEADS:
        return read_head(initialize, target)
    return None


@dataclass(frozen=True)
class Loaded:
    """A model on the CPU, and what the core asked for."""

    initialize: worker_pb2.Initialize
    config: ModelConfig
    max_model_len: int
    computing: CpuModel

    def make_cache(self, draft: LoadedDrafter | None, speculation: worker_pb2.Speculation | None) -> KVCache:
        """Returns the KV cache, as large as requested or as fits beside that of a draft model, and states."""
        specs, size = self.computing.model.kv_cache_specs(), self.initialize.block_size
        stored = stored_dtype(self.initialize, self.computing.dtype)
        with draft.names_both() if draft is not None else nullcontext():
            num_blocks = choose_num_blocks(
                self.initialize.num_blocks,
                block_bytes(specs, size, stored) + (draft.block_bytes if draft is not None else 0),
                self.initialize.max_num_seqs,
                self.max_model_len,
                size,
                num_workers=max(1, self.initialize.data_parallel_size),
                requested_bytes=self.initialize.kv_cache_bytes,
                num_threads=torch.get_num_threads(),
                reserved=states_bytes(
                    self.computing.model.state_specs(),
                    self.initialize.max_num_seqs,
                    self.initialize.state_checkpoints,
                    _most_drafts(speculation),
                ),
            )
        each_alone = (
            not self.computing.exactness.caveat
        )  # the bits that are promised depend on positions alone
        return KVCache(specs, CacheLayout(size, num_blocks, self.computing.dtype, CPU, each_alone, stored))

    def make_executor(
        self,
        cache: KVCache,
        swap_space: SwapSpace,
        speculation: worker_pb2.Speculation | None,
        grammars: GrammarRows,
        draft: LoadedDrafter | None,
    ) -> StepExecutor[CpuBackend]:
        """Returns what executes steps on this cache."""
        most_rows, vocab_size = self.initialize.max_num_seqs, self.config.vocab_size
        size = self.initialize.block_size
        rows = RowTable(most_rows, self.max_model_len, vocab_size, size, cache.num_blocks)
        kernels = sampling_kernels(torch.get_num_threads())
        sampler = Sampler(most_rows, vocab_size, CPU, kernels, grammars)
        drafter = observe = None
        drafter_tensors: list[torch.Tensor] = []
        if draft is not None:
            drafting = draft.make_drafter(rows, swap_space.num_blocks, self.computing.model)
            drafter, observe, drafter_tensors = drafting
        specs = self.computing.model.state_specs()
        checkpoints = self.initialize.state_checkpoints
        drafts = _most_drafts(speculation)
        states = RowStates(specs, most_rows, CPU, checkpoints, drafts) if specs else None
        backend = CpuBackend(
            self.computing.model, cache, swap_space, rows, sampler, self.computing.blocks, observe, states
        )
        backend.drafter_tensors = drafter_tensors
        kept = () if drafter is None else (drafter,)
        speculator = make_speculator(speculation, rows, grammars, drafter, kept, drafter, states)
        return StepExecutor(rows, backend, self.initialize.max_num_batched_tokens, speculator)


def warm_up(runner: StepExecutor[CpuBackend]) -> None:
    """Computes one token of a prompt, one more, and one that is drafted: torch and the kernels set up on
    their first use what a request would otherwise wait for. The row is removed again."""
    rows = runner.rows
    if rows.max_model_len < 2:
        return
    first = prefill_plan([1], rows.block_size)
    runner.execute(first)
    if rows.block_size > 1 and rows.max_model_len > 2:
        runner.execute(decode_plan([1]))
    if runner.drafts and rows.block_size > 3 and rows.max_model_len > 4:
        runner.execute(draft_plan([2]))
    runner.execute(removal_plan(first))


def _most_drafts(speculation: worker_pb2.Speculation | None) -> int:
    """Returns the most drafted tokens of a row in a step."""
    return 0 if speculation is None else speculation.tokens


def _set_threads(model: LanguageModel, requested: int, num_workers: int, pinned: bool) -> None:
    """Sets the number of torch's threads, which the compiled kernels take over."""
    cores = own_cores(max(1, num_workers), pinned)
    torch.set_num_threads(choose_threads(requested, model_bytes(model), cores))


def _ready(
    loaded: Loaded, executor: StepExecutor[CpuBackend], cache: KVCache, swap_space: SwapSpace
) -> worker_pb2.Ready:
    """Logs what was loaded in one line, measures, and returns what the core is told."""
    initialize, threads = loaded.initialize, torch.get_num_threads()
    weight_bytes = model_bytes(loaded.computing.model)
    logger.info(
        "%s in %s%s: %.0f MiB of weights, %d KV blocks%s (%.0f MiB), %d threads",
        loaded.config.architecture,
        dtype_name(loaded.computing.dtype),
        f", weights in {loaded.computing.quantization}" if loaded.computing.quantization else "",
        weight_bytes / 2**20,
        cache.num_blocks,
        f" in {initialize.kv_cache_dtype}" if initialize.kv_cache_dtype else "",
        cache.num_bytes / 2**20,
        threads,
    )
    in_cache = cache.num_blocks * initialize.block_size
    longest = min(initialize.max_num_batched_tokens, loaded.max_model_len - 1, in_cache)
    prefill_us = measure_prefill(executor.execute, longest, initialize.block_size)
    facts = loaded.config, loaded.computing.dtype, loaded.max_model_len, weight_bytes
    ready = make_ready(*facts, cache, swap_space, prefill_us)
    ready.num_threads = threads
    ready.num_state_checkpoints = initialize.state_checkpoints if ready.has_states else 0
    ready.model.quantization = loaded.computing.quantization
    ready.model.grammar_engine = executor.backend.grammars.engine
    loaded.computing.exactness.describe(ready.model)
    return ready
