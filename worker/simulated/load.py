"""From `Initialize` to an executor on a simulated device. Reads config.json and generation_config.json of the
checkpoint; its weights may be missing."""

import logging
import math

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.config.hf_config import DTYPE_BYTES, ModelConfig
from worker.exactness import SIMULATED
from worker.executor.executor import StepExecutor
from worker.fault_injection import Faults
from worker.grammar.tokenizer import GrammarsToCome
from worker.memory.host_blocks import choose_num_host_blocks, requested_blocks
from worker.simulated.backend import HostLink, SimulatedBackend, sleep_precisely
from worker.simulated.clock import REAL_TIME, Clock
from worker.simulated.drafter import SimulatedDrafter
from worker.simulated.profiles import Profile, find_profile
from worker.simulated.roofline import Roofline
from worker.simulated.tokens import TokenSource
from worker.simulated.weights import count_weights
from worker.speculation.options import make_speculator, read_speculation
from worker.startup.checks import (
    check_group,
    check_quantization,
    choose_max_model_len,
    refuse_cache_dtype,
    refuse_fast_matmul,
)
from worker.startup.implementation import choose_implementation
from worker.step.rows import RowTable

logger = logging.getLogger(__name__)

DEFAULT_DTYPE = "bfloat16"
"""Used where neither the flag nor config.json names a dtype."""


def load(
    initialize: worker_pb2.Initialize, config: WorkerConfig, clock: Clock = REAL_TIME
) -> tuple[StepExecutor[SimulatedBackend], worker_pb2.Ready]:
    """Returns the executor and what the core is told. Raises StartupError when anything does not fit."""
    profile = find_profile(initialize.profile)
    check_group(config.rank, initialize.tensor_parallel_size)
    check_quantization(initialize.quantization, "simulated")
    refuse_fast_matmul(initialize.fast_matmul, "simulated")
    refuse_cache_dtype(initialize.kv_cache_dtype, "simulated")
    speculation = read_speculation(initialize, "simulated")
    model = choose_implementation(initialize, "simulated")
    if model.has_states:
        raise StartupError(
            "cannot simulate this model",
            f"{model.architecture} keeps a state per row, of which a simulated device knows no cost",
            "simulate another model, or use --device cpu",
        )
    max_model_len = choose_max_model_len(initialize.max_model_len, model)
    dtype = model.dtype or DEFAULT_DTYPE if initialize.dtype in ("", "auto") else initialize.dtype
    value_bytes = DTYPE_BYTES[dtype]
    weights = count_weights(model)
    weight_bytes = weights.total * value_bytes
    block_bytes = initialize.block_size * kv_token_bytes(model, value_bytes)
    num_blocks = choose_num_blocks(initialize, max_model_len, profile, weight_bytes, block_bytes)
    num_host_blocks = choose_num_host_blocks(initialize.swap_space_bytes, block_bytes, available=math.inf)
    host_link = HostLink(num_host_blocks, block_bytes / profile.host_bandwidth)
    roofline = Roofline(model, weights, value_bytes, profile)
    rows = RowTable(
        initialize.max_num_seqs, max_model_len, model.vocab_size, initialize.block_size, num_blocks
    )
    grammars = GrammarsToCome(initialize, model.vocab_size, model.eos_token_ids).rows(lambda *_: None)
    tokens = TokenSource(initialize.max_num_seqs, model.vocab_size, model.eos_token_ids, grammars)
    backend = SimulatedBackend(rows, tokens, roofline, host_link, Faults(config), clock, model.state_size)
    drafter = None
    if speculation is not None and speculation.method == engine_pb2.DRAFT_METHOD_SIMULATED:
        drafter = SimulatedDrafter(rows, tokens, speculation.acceptance)
    speculator = make_speculator(speculation, rows, grammars, drafter)
    runner = StepExecutor(rows, backend, initialize.max_num_batched_tokens, speculator)
    if clock is REAL_TIME:
        sleep_precisely()
    logger.info("simulating %s in %s on %s", model.architecture, dtype, profile.name)
    return runner, worker_pb2.Ready(
        model=engine_pb2.ModelFacts(
            architecture=model.architecture,
            dtype=dtype,
            vocab_size=model.vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=model.eos_token_ids,
            weight_bytes=weight_bytes,
            arithmetic=SIMULATED.arithmetic,
            implementation=model.implementation,
            embedding_size=model.state_size,
            grammar_engine=grammars.engine,
        ),
        num_blocks=num_blocks,
        kv_cache_bytes=num_blocks * block_bytes,
        device="simulated",
        num_host_blocks=num_host_blocks,
        prefill_us_per_token=roofline.prefill_us_per_token(
            min(initialize.max_num_batched_tokens, max_model_len)
        ),
        swap_us_per_block=1e6 * host_link.seconds_per_block,
        draft_tokens=0 if speculation is None else speculation.tokens,
        draft_batch=0 if speculation is None else speculation.batch,
    )


def kv_token_bytes(model: ModelConfig, value_bytes: int) -> int:
    """Returns the bytes of one token's keys and values in all layers."""
    return value_bytes * model.num_layers * model.kv_values


def choose_num_blocks(
    initialize: worker_pb2.Initialize,
    max_model_len: int,
    profile: Profile,
    weight_bytes: int,
    block_bytes: int,
) -> int:
    """Returns the number of blocks that fit beside the weights, up to what max_num_seqs sequences of full
    length can use. Raises StartupError when none fits, or fewer than requested."""
    free = int(profile.memory * initialize.gpu_memory_utilization) - weight_bytes
    affordable = max(0, free) // block_bytes
    requested = requested_blocks(initialize.num_blocks, initialize.kv_cache_bytes, block_bytes)
    if affordable < max(1, requested):
        raise StartupError(
            "cannot allocate the KV cache",
            f"the profile {profile.name} has room for {affordable} KV blocks of {block_bytes >> 10} KiB"
            f" beside {weight_bytes / 1e9:.1f} GB of weights",
            "use fewer --num-blocks or less --kv-cache-memory, a smaller model, or another --profile",
        )
    useful = initialize.max_num_seqs * -(-max_model_len // initialize.block_size)
    return requested or min(useful, affordable)
