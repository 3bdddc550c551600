"""From `Initialize` to a runner on a CUDA device: refusals, weights, profile, KV cache, warm-up, graphs."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.api import CacheLayout
from kernels.triton_ops import TritonOps
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.config.hf_config import ModelConfig
from worker.cuda.backend import CudaBackend
from worker.cuda.device.device import Device
from worker.cuda.low_bits import LowBits
from worker.cuda.sampling.sampler import CudaSampler
from worker.cuda.startup.compile_watch import CompileWatch
from worker.cuda.startup.limits import (
    WHAT,
    check_kernels,
    check_sizes,
    check_weights,
    find_device,
    refuse_drafts,
    warn_of_float32,
)
from worker.cuda.startup.memory import GIB, Demand, choose_num_blocks, largest_steps
from worker.cuda.startup.warm_up import warm_up
from worker.exactness import Exactness, on_cuda
from worker.executor.executor import StepExecutor
from worker.grammar.rows import GrammarRows
from worker.grammar.tokenizer import GrammarsToCome
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.latent.head_linear import HeadLinear
from worker.memory.host_blocks import requested_blocks
from worker.memory.kv_cache import KVCache, block_bytes
from worker.memory.row_states import RowStates
from worker.memory.swap_space import SwapSpace, make_swap_space
from worker.models.base import Family, LanguageModel
from worker.models.registry import FAMILIES
from worker.parallel import Placement
from worker.speculation.options import check_exactness, make_speculator, read_speculation
from worker.startup.checks import (
    check_cache_dtype,
    check_group,
    check_quantization,
    choose_max_model_len,
    refuse_second_quantization,
)
from worker.startup.implementation import choose_implementation
from worker.startup.model import Report, dtype_name, load_model, model_bytes
from worker.startup.ready import make_ready, stored_dtype
from worker.step.prefill_speed import measure_prefill
from worker.step.rows import RowTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model on its device, and what the core asked for."""

    initialize: worker_pb2.Initialize
    config: ModelConfig
    max_model_len: int
    device: Device
    model: LanguageModel
    dtype: torch.dtype
    speculation: worker_pb2.Speculation | None = None
    quantization: str = ""  # of the weights, as ModelFacts says it
    states: RowStates | None = None  # of rows; None: no layer has one

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device."""
        return model_bytes(self.model)


@dataclass(frozen=True)
class Parts:
    """A runner with its cache and swap space."""

    runner: StepExecutor[CudaBackend]
    cache: KVCache
    swap_space: SwapSpace


def load(
    initialize: worker_pb2.Initialize, rank: int, report: Report, device: Device | None = None
) -> tuple[StepExecutor[CudaBackend], worker_pb2.Ready]:
    """Returns a runner that has been warmed up. device: None for the device that is found. Raises
    StartupError when anything does not fit."""
    torch.set_num_threads(1)  # the host launches; what it computes is a few numbers for each row
    config = choose_implementation(initialize, "cuda")
    grammars = GrammarsToCome(initialize, config.vocab_size, config.eos_token_ids)
    loaded = load_on_device(initialize, rank, report, device)
    watch = CompileWatch()
    num_blocks = find_num_blocks(loaded, report)
    report("KV cache", 0.0)
    swap_bytes = 0 if loaded.states is not None else initialize.swap_space_bytes
    parts = assemble(loaded, num_blocks, swap_bytes, grammars.rows(report))
    most_tokens = initialize.max_num_batched_tokens

    def progress(fraction: float) -> None:
        report("warm-up", fraction)

    with_experts = has_grouped_products(loaded.model)
    warm_up(parts.runner, most_tokens, not initialize.enforce_eager, progress, with_experts)
    longest = min(most_tokens, loaded.max_model_len - 1, num_blocks * initialize.block_size)
    prefill_us = measure_prefill(parts.runner.execute, longest, initialize.block_size)
    facts = loaded.config, loaded.dtype, loaded.max_model_len, loaded.weight_bytes
    ready = make_ready(*facts, parts.cache, parts.swap_space, prefill_us)
    exactness(loaded.initialize, loaded.device).describe(ready.model)
    ready.num_state_checkpoints = 0 if loaded.states is None else loaded.states.num_checkpoints
    ready.model.quantization = loaded.quantization
    ready.model.grammar_engine = parts.runner.backend.grammars.engine
    if loaded.speculation is not None:
        ready.draft_tokens, ready.draft_batch = loaded.speculation.tokens, loaded.speculation.batch
    logger.info(
        "%s in %s%s on %s: %.1f GiB of weights, %d KV blocks (%.1f GiB), %d kernels compiled, %s",
        loaded.config.architecture,
        dtype_name(loaded.dtype),
        f", weights in {loaded.quantization}" if loaded.quantization else "",
        loaded.device.name,
        loaded.weight_bytes / GIB,
        num_blocks,
        parts.cache.num_bytes / GIB,
        watch.count,
        "no graphs" if initialize.enforce_eager else "steps in graphs",
    )
    watch.serving()
    return parts.runner, ready


def load_on_device(
    initialize: worker_pb2.Initialize, rank: int, report: Report, device: Device | None
) -> LoadedModel:
    """Loads the model, after all checks that need no weights. Raises StartupError."""
    check_group(rank, initialize.tensor_parallel_size)
    check_quantization(initialize.quantization, "cuda")
    if initialize.quantization == "int4-g32":
        refuse_second_quantization(initialize.quantization, Path(initialize.model_path))
    speculation = read_speculation(initialize, "cuda")
    config = choose_implementation(initialize, "cuda")
    check_cache_dtype(initialize.kv_cache_dtype, config)
    family = FAMILIES[config.architecture]
    max_model_len = choose_max_model_len(initialize.max_model_len, config)
    check_sizes(initialize, max_model_len)
    where = device or find_device()
    check_exactness(speculation, exactness(initialize, where))
    if config.has_states:
        refuse_drafts(speculation)

    def check_dtype(dtype: torch.dtype) -> None:
        check_kernels(where, dtype, config, initialize.block_size, stored_dtype(initialize, dtype))

    def check_bytes(num_bytes: int, dtype: torch.dtype) -> None:
        check_weights(num_bytes, dtype, where, initialize.gpu_memory_utilization or 1.0)

    def checked(dtype: torch.dtype) -> torch.dtype:
        check_dtype(dtype)
        check_bytes(count_weight_bytes(family, config, dtype), dtype)
        return dtype

    bits = LowBits(initialize.quantization, where.place, check_dtype, check_bytes)
    model, dtype = load_model(config, initialize, where.place, report, checked, bits=bits)
    model.compute_by(TritonOps(by_library=initialize.fast_matmul))
    warn_of_float32(dtype)
    specs, checkpoints = model.state_specs(), initialize.state_checkpoints
    states = RowStates(specs, initialize.max_num_seqs, where.place, checkpoints) if specs else None
    facts = initialize, config, max_model_len, where, model, dtype, speculation, bits.quantization
    return LoadedModel(*facts, states)


def has_grouped_products(model: torch.nn.Module) -> bool:
    """Returns whether any layer has a matrix for each expert, or for each head."""
    return any(isinstance(layer, ExpertMatrices | HeadLinear) for layer in model.modules())


def exactness(initialize: worker_pb2.Initialize, device: Device) -> Exactness:
    """Returns what a model on the device promises."""
    return on_cuda(device.arithmetic, initialize.fast_matmul).with_cache(initialize.kv_cache_dtype)


def count_weight_bytes(family: Family, config: ModelConfig, dtype: torch.dtype) -> int:
    """Returns the bytes of the model's weights without allocating them."""
    model = family.build(config, Placement(dtype, torch.device("meta")))
    return sum(parameter.nbytes for parameter in model.parameters())


def find_num_blocks(loaded: LoadedModel, report: Report) -> int:
    """Returns how many blocks fit beside the largest steps, which are run on a cache of one block. Raises
    StartupError."""
    report("profile", 0.0)
    initialize, size = loaded.initialize, loaded.initialize.block_size
    memory, temporary = loaded.device.memory(), 0
    if loaded.max_model_len > 1:
        try:
            parts = assemble(loaded, 1, 0)
            temporary = largest_steps(
                parts.runner,
                initialize.max_num_batched_tokens,
                not initialize.enforce_eager,
                loaded.device,
            )
            memory = loaded.device.memory()  # beside what a runner has of rows from its start
            del parts
        except torch.OutOfMemoryError as error:
            raise StartupError(
                WHAT,
                f"a step of {initialize.max_num_batched_tokens} tokens does not fit on {loaded.device.name}"
                " beside the weights",
                "use fewer --max-num-batched-tokens, a larger device, or a smaller model",
            ) from error
    per_sequence = -(-loaded.max_model_len // size)
    each = block_bytes(loaded.model.kv_cache_specs(), size, stored_dtype(initialize, loaded.dtype))
    demand = Demand(
        each,
        requested_blocks(initialize.num_blocks, initialize.kv_cache_bytes, each),
        initialize.max_num_seqs * per_sequence,
        per_sequence if initialize.max_model_len else 0,
        initialize.gpu_memory_utilization or 1.0,
    )
    return choose_num_blocks(memory, temporary, demand, loaded.device.name)


def assemble(
    loaded: LoadedModel, num_blocks: int, swap_space_bytes: int, grammars: GrammarRows | None = None
) -> Parts:
    """Returns a runner with this many blocks. grammars: of its rows. Raises StartupError."""
    initialize, config, place = loaded.initialize, loaded.config, loaded.device.place
    stored = stored_dtype(initialize, loaded.dtype)
    layout = CacheLayout(initialize.block_size, num_blocks, loaded.dtype, place, stored=stored)
    cache = KVCache(loaded.model.kv_cache_specs(), layout)
    swap_space = make_swap_space(swap_space_bytes, cache)
    rows = RowTable(
        initialize.max_num_seqs, loaded.max_model_len, config.vocab_size, initialize.block_size, num_blocks
    )
    speculation, most_tokens = loaded.speculation, initialize.max_num_batched_tokens
    backend = CudaBackend(
        loaded.model,
        cache,
        swap_space,
        rows,
        CudaSampler(initialize.max_num_seqs, config.vocab_size, place, grammars),
        most_tokens,
        loaded.device,
        1 if speculation is None else 1 + speculation.tokens,
        loaded.states,
    )
    speculator = make_speculator(speculation, rows, backend.grammars)
    runner = StepExecutor(rows, backend, most_tokens, speculator)
    return Parts(runner, cache, swap_space)
