"""From `Initialize` to a runner on a CPU: configuration, weights, KV cache, warm-up. worker.cuda.load is
the same on a GPU."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kernels.cpu.runtime.arena import Arena
from kernels.cpu.sampling.api import sampling_kernels
from kernels.triton.requirements import why_not
from pagewire.errors import StartupError
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.attention.kv_cache_spec import CacheLayout, KVCacheSpec
from worker.config.hf_config import ModelConfig
from worker.config.registry import read_model_config
from worker.cpu.backend import CpuBackend
from worker.cpu.fused_decoder.decoder import fuse
from worker.cpu.kernel_selection import compute_dtype, use_cpu_kernels
from worker.cpu.malloc_tuning import settle
from worker.cpu.precompile import Precompiled
from worker.cpu.threads import choose_threads, own_cores
from worker.cpu.warm_up import warm_up
from worker.executor.executor import StepExecutor
from worker.layers.packed_linear import Matrix
from worker.memory.kv_cache import NO_MEMORY, KVCache, available_memory, block_bytes, choose_num_blocks
from worker.memory.swap_space import SwapSpace
from worker.models.base import Family, LanguageModel
from worker.models.registry import FAMILIES
from worker.parallel import Placement
from worker.sampling.sampler import Sampler
from worker.startup_checks import check_group, choose_max_model_len, choose_num_host_blocks
from worker.step.prefill_speed import measure_prefill
from worker.step.rows import RowTable
from worker.weights.loader import WHAT, Checkpoint, fill_dummy, load_weights, weight_table
from worker.weights.prefault import WeightsMemory

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Report = Callable[[str, float], None]
"""Called with what is being done and the fraction of it that is done."""


def load(
    initialize: worker_pb2.Initialize,
    rank: int,
    threads: int,
    report: Report,
    pinned: bool = False,
    precompiled: Precompiled | None = None,
    memory: WeightsMemory | None = None,
) -> tuple[StepExecutor[CpuBackend], worker_pb2.Ready]:
    """threads: as asked for, 0 to choose. pinned: our cores are ours alone. precompiled: kernels that are
    made ready beside us. memory: for the weights. Raises StartupError when anything does not fit."""
    folder = Path(initialize.model_path)
    device = torch.device("cpu")
    check_group(rank, initialize.tensor_parallel_size)
    config = read_model_config(folder)
    family = FAMILIES[config.architecture]
    max_model_len = choose_max_model_len(initialize.max_model_len, config)
    if precompiled is not None:
        precompiled.begin()
    quantized = initialize.quantization == "int8"
    arena = None if quantized else Arena(None if memory is None else memory.tensor())
    choose = (lambda dtype: dtype) if quantized else compute_dtype  # int8 says itself what it is made from
    model, dtype = load_model(folder, family, config, initialize, device, report, choose, arena=arena)
    if memory is not None and arena is not None:
        memory.release(arena.unused_address)
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    cores = own_cores(max(1, initialize.data_parallel_size), pinned)
    torch.set_num_threads(choose_threads(threads, weight_bytes, cores))
    if precompiled is not None:
        precompiled.wait(report)
    group = config.num_heads // config.num_kv_heads
    kernels = use_cpu_kernels(
        model, dtype, device, initialize.block_size, config.head_dim, group, arena, report
    )
    weight_bytes = model_bytes(model)
    model = fuse(model, kernels.rows, kernels.blocks)

    report("KV cache", 0.0)
    cache = make_cache(model.kv_cache_specs(), initialize, max_model_len, dtype, device)
    swap_space = make_swap_space(initialize.swap_space_bytes, cache)
    rows = RowTable(
        initialize.max_num_seqs, max_model_len, config.vocab_size, initialize.block_size, cache.num_blocks
    )
    compiled = sampling_kernels(torch.get_num_threads()) if device.type == "cpu" else None
    sampler = Sampler(initialize.max_num_seqs, config.vocab_size, device, compiled)
    backend = CpuBackend(model, cache, swap_space, rows, sampler, kernels.blocks)
    runner = StepExecutor(rows, backend, initialize.max_num_batched_tokens)
    if device.type == "cpu":
        settle()
    report("warm-up", 0.0)
    warm_up(runner)
    most_tokens = min(
        initialize.max_num_batched_tokens, max_model_len - 1, cache.num_blocks * initialize.block_size
    )
    logger.info(
        "%s in %s: %.0f MiB of weights, %d KV blocks (%.0f MiB), %d threads",
        config.architecture,
        _dtype_name(dtype),
        weight_bytes / 2**20,
        cache.num_blocks,
        cache.num_bytes / 2**20,
        torch.get_num_threads(),
    )
    prefill_us = measure_prefill(runner.execute, most_tokens, initialize.block_size)
    ready = make_ready(config, dtype, max_model_len, weight_bytes, cache, swap_space, prefill_us)
    ready.num_threads = torch.get_num_threads()
    ready.model.quantization = initialize.quantization
    return runner, ready


def model_bytes(model: LanguageModel) -> int:
    """Of its weights as they are computed with."""
    packed = {
        id(layer.packed): layer.packed.nbytes
        for layer in model.modules()
        if isinstance(layer, Matrix) and layer.packed is not None
    }
    return sum(parameter.nbytes for parameter in model.parameters()) + sum(packed.values())


def make_ready(
    config: ModelConfig,
    dtype: torch.dtype,
    max_model_len: int,
    weight_bytes: int,
    cache: KVCache,
    swap_space: SwapSpace,
    prefill_us_per_token: float,
) -> worker_pb2.Ready:
    """What the core is told."""
    return worker_pb2.Ready(
        model=engine_pb2.ModelFacts(
            architecture=config.architecture,
            dtype=_dtype_name(dtype),
            vocab_size=config.vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=config.eos_token_ids,
            weight_bytes=weight_bytes,
        ),
        num_blocks=cache.num_blocks,
        kv_cache_bytes=cache.num_bytes,
        depends_on_prompt_len=config.depends_on_prompt_len,
        device=cache.layout.device.type,
        num_host_blocks=swap_space.num_blocks,
        prefill_us_per_token=prefill_us_per_token,
        swap_us_per_block=swap_space.measure_us_per_block(),
    )


def load_model(
    folder: Path,
    family: Family,
    config: ModelConfig,
    initialize: worker_pb2.Initialize,
    device: torch.device,
    report: Report,
    choose: Callable[[torch.dtype], torch.dtype] = lambda dtype: dtype,
    arena: Arena | None = None,
) -> tuple[LanguageModel, torch.dtype]:
    """Loads the weights; returns the model and the dtype that it computes in.

    choose: maps the requested dtype to the one that the device computes in, before anything is allocated;
    may raise StartupError. arena: memory for the weights, on a CPU.
    """

    def progress(fraction: float) -> None:
        report("weights", fraction)

    progress(0.0)
    if initialize.load_format == "dummy":
        dtype = choose(_choose_dtype(initialize.dtype, DTYPES[config.dtype or "float32"]))
        model = _build(family, config, Placement(dtype, device, arena=arena))
        fill_dummy(weight_table(model, family.names), initialize.seed, progress)
        return model, dtype
    with Checkpoint(folder) as checkpoint:
        stored = DTYPES[config.dtype] if config.dtype else checkpoint.main_dtype()
        dtype = choose(_choose_dtype(initialize.dtype, stored))
        model = _build(family, config, Placement(dtype, device, arena=arena))
        table = weight_table(model, family.names)
        load_weights(checkpoint, table, family.unused, progress, family.optional_prefix)
    return model, dtype


def _build(family: Family, config: ModelConfig, place: Placement) -> LanguageModel:
    """The model without its weights. Raises StartupError when there is no room for it."""
    try:
        return family.build(config, place)
    except NO_MEMORY as error:
        why = str(error).splitlines()[0] if str(error) else "not enough memory"
        raise StartupError(
            WHAT,
            f"a model as large as config.json says cannot be made: {why}",
            "is config.json that of these weights?",
        ) from error


def make_cache(
    specs: Sequence[KVCacheSpec],
    initialize: worker_pb2.Initialize,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KVCache:
    """The KV cache, as large as asked for or as fits."""
    size = initialize.block_size
    num_blocks = choose_num_blocks(
        initialize.num_blocks,
        block_bytes(specs, size, dtype),
        initialize.max_num_seqs,
        max_model_len,
        size,
        num_workers=max(1, initialize.data_parallel_size),
    )
    return KVCache(specs, CacheLayout(size, num_blocks, dtype, device))


def make_swap_space(num_bytes: int, cache: KVCache) -> SwapSpace:
    """So many bytes of host memory, which on a CPU are of the same memory as the cache."""
    in_use = cache.num_bytes if cache.layout.device.type == "cpu" else 0  # claimed, but not yet written
    per_block = cache.num_bytes // (cache.num_blocks + 1)
    num_blocks = choose_num_host_blocks(num_bytes, per_block, available_memory() - in_use)
    return SwapSpace(num_blocks, cache)


def choose_device(name: str) -> torch.device:
    """auto is the GPU that torch finds, unless our kernels are not for it."""
    if name == "cuda":
        return torch.device("cuda")
    if name == "auto" and torch.cuda.is_available():
        reason = why_not(torch.device("cuda"), torch.bfloat16, head_dim=128)
        if reason is None:
            return torch.device("cuda")
        logger.warning("computing on the CPU: %s", reason)
    return torch.device("cpu")


def _choose_dtype(name: str, checkpoints: torch.dtype) -> torch.dtype:
    return checkpoints if name in ("", "auto") else DTYPES[name]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
