"""What is decided once, between the configuration and the first step."""

import dataclasses
import logging
import secrets
from collections.abc import Callable
from functools import partial

from engine_core.core import Identity
from engine_core.intake.overload import QueueBounds
from engine_core.intake.validation import MAX_PRIORITY, Limits
from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.queue.policies import FAIR
from engine_core.queue.token_counters import Weights
from engine_core.recording.file import RecordingWriter
from engine_core.recording.recorder import RecordedScheduler
from engine_core.scheduler.scheduler import Scheduler
from pagewire import __version__
from pagewire.checkpoint_paths import checkpoint_folder
from pagewire.config import EngineConfig, WorkerConfig
from pagewire.errors import StartupError
from pagewire.host.liveness import LEAST_PATIENCE_S
from pagewire.internal.v1.engine_pb2 import ModelFacts, Welcome
from pagewire.internal.v1.worker_pb2 import Initialize, Ready
from pagewire.v1.admin_pb2 import Parallelism

log = logging.getLogger(__name__)

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_MOST_GIB = 1 << 20
"""Of swap space: more than any host has, and still countable in blocks."""


def check_config(config: EngineConfig) -> None:
    """Raises StartupError for what cannot work, and for what is not built yet, naming the flag."""
    planned = {
        "--tensor-parallel-size": config.tensor_parallel_size > 1,
        "--pipeline-parallel-size": config.pipeline_parallel_size > 1,
    }
    for flag, asked in planned.items():
        if asked:
            raise StartupError("cannot start the engine core", f"{flag} is not built yet", "leave it out")
    if config.listen_workers.startswith("tcp://") and not config.external_workers:
        raise StartupError(
            "cannot start the engine core",
            "--listen-workers is tcp://, which its own worker has no use for",
            "add --external-workers, or leave it out",
        )
    if config.record_tokens and not config.record:
        raise StartupError(
            "cannot start the engine core", "--record-tokens without --record", "add --record FILE"
        )
    if 0 < config.hang_timeout < LEAST_PATIENCE_S:
        raise StartupError(
            "cannot start the engine core",
            f"--hang-timeout is {config.hang_timeout}",
            f"use 0, or at least {LEAST_PATIENCE_S}",
        )
    ranges: dict[str, tuple[float, float, float]] = {
        "--tensor-parallel-size": (config.tensor_parallel_size, 1, 1),
        "--pipeline-parallel-size": (config.pipeline_parallel_size, 1, 1),
        "--swap-space": (config.swap_space, 0, _MOST_GIB),
        "--block-size": (config.block_size, 1, _U32),
        "--max-num-batched-tokens": (config.max_num_batched_tokens, 1, _U32),
        "--max-num-seqs": (config.max_num_seqs, 1, _U32),
        "--max-model-len": (config.max_model_len, 0, _U32),
        "--num-blocks": (config.num_blocks, 0, _U32),
        "--max-num-queued-reqs": (config.max_num_queued_reqs, 0, _U32),
        "--max-num-queued-tokens": (config.max_num_queued_tokens, 0, _U64),
        "--max-queue-wait": (config.max_queue_wait, 0, _U32),
        "--seed": (config.seed, 0, _U64),
        "--gpu-memory-utilization": (config.gpu_memory_utilization, 0.01, 1),
        "--prompt-token-weight": (config.prompt_token_weight, 0, 1000),
        "--output-token-weight": (config.output_token_weight, 0.001, 1000),
    }
    for name, weight in _tenant_weights(config).items():
        ranges[f"--tenant-weight {name}"] = weight, 0.001, 1000
    for flag, (value, lowest, highest) in ranges.items():
        if not lowest <= value <= highest:
            raise StartupError(
                "cannot start the engine core", f"{flag} is {value}", f"use {lowest} to {highest}"
            )


def initialize_message(config: EngineConfig) -> Initialize:
    """What the worker is told. Raises StartupError when there is no such model."""
    return Initialize(
        model_path=str(checkpoint_folder(config.model)),
        device=config.device,
        dtype=config.dtype,
        quantization="" if config.quantization == "none" else config.quantization,
        load_format=config.load_format,
        max_model_len=config.max_model_len,
        max_num_seqs=_num_rows(config),
        max_num_batched_tokens=config.max_num_batched_tokens,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        gpu_memory_utilization=config.gpu_memory_utilization,
        enforce_eager=config.enforce_eager,
        seed=config.seed,
        tensor_parallel_size=config.tensor_parallel_size,
        profile=config.profile,
        swap_space_bytes=int(config.swap_space * (1 << 30)),
        data_parallel_size=config.data_parallel_size,
    )


def make_scheduler(config: EngineConfig, ready: Ready, recording: RecordingWriter | None = None) -> Scheduler:
    """A scheduler over the worker's blocks; with a recording: one that is recorded there."""
    kind: Callable[..., Scheduler] = Scheduler
    if recording is not None:
        kind = partial(RecordedScheduler, recording, with_tokens=config.record_tokens)
    return kind(
        num_blocks=ready.num_blocks,
        block_size=config.block_size,
        max_num_seqs=_num_rows(config),
        max_num_batched_tokens=config.max_num_batched_tokens,
        prefix_cache=not (config.no_prefix_cache or ready.depends_on_prompt_len),
        policy=config.policy,
        weights=Weights(config.prompt_token_weight, config.output_token_weight, _tenant_weights(config)),
        num_host_blocks=ready.num_host_blocks,
        swap_costs=SwapCosts(ready.prefill_us_per_token, ready.swap_us_per_block),
    )


def queue_bounds(config: EngineConfig) -> QueueBounds:
    """How much may wait."""
    return QueueBounds(config.max_num_queued_reqs, config.max_num_queued_tokens, config.max_queue_wait)


def make_identity(config: EngineConfig, ready: Ready, start_time_ns: int) -> Identity:
    """What frontends are told, and requests are measured against. Raises StartupError."""
    model = ModelFacts()
    model.CopyFrom(ready.model)
    model.max_model_len = _max_model_len(config, ready)
    welcome = Welcome(
        epoch=start_time_ns,
        engine_version=__version__,
        instance_id=secrets.token_hex(16),
        model=model,
        block_size=config.block_size,
        num_blocks=ready.num_blocks,
        max_num_seqs=_num_rows(config),
        max_num_batched_tokens=config.max_num_batched_tokens,
        device=ready.device or config.device,
        parallelism=Parallelism(tensor=1, pipeline=1, data=1, expert=1),
        max_priority=MAX_PRIORITY if config.policy == FAIR else 0,
    )
    welcome.start_time.FromNanoseconds(start_time_ns)
    limits = Limits(
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        max_num_seqs=_num_rows(config),
        eos_token_ids=frozenset(model.eos_token_ids),
        num_blocks=ready.num_blocks,
        block_size=config.block_size,
        max_priority=welcome.max_priority,
    )
    return Identity(welcome, limits)


def worker_arguments(config: EngineConfig) -> list[str]:
    """What a worker that we start is told on its command line, beyond where we are. Raises StartupError."""
    known = {field.name for field in dataclasses.fields(WorkerConfig)}
    arguments = [f"--log-level={config.log_level}", f"--log-format={config.log_format}"]
    if config.external_workers and (config.threads or config.worker_cores):
        raise StartupError(
            "cannot start the engine core",
            "--threads and --worker-cores are for a worker that we start ourselves",
            "give them to the worker: --threads, --cores",
        )
    arguments += [f"--threads={config.threads}"] if config.threads else []
    arguments += [f"--cores={config.worker_cores}"] if config.worker_cores else []
    for fault in config.worker_fault:
        name = "fault-" + fault.partition("=")[0]
        why = ""
        if name.replace("-", "_") not in known:
            why = "no worker knows it"
        if config.external_workers or config.device == "cuda":
            why = "only a simulated device or a CPU that we start ourselves fails on purpose"
        if why:
            raise StartupError(
                "cannot start the engine core", f"--worker-fault {fault}: {why}", "leave it out"
            )
        arguments.append("--fault-" + fault)  # what it may be equal to, the worker says
    return arguments


def _max_model_len(config: EngineConfig, ready: Ready) -> int:
    """The worker's context length, or less: one sequence of full length must always fit into the pool."""
    slots = ready.num_blocks * config.block_size
    if ready.model.max_model_len < 2 or slots < 2:
        raise StartupError(
            "cannot start the engine core",
            f"there is no room for a prompt and an output: a context of {ready.model.max_model_len} tokens,"
            f" {ready.num_blocks} KV blocks of {config.block_size}",
            "raise --num-blocks or --max-model-len",
        )
    if slots < ready.model.max_model_len:
        log.warning(
            "the context is %d tokens, not %d: more does not fit into the KV cache",
            slots,
            ready.model.max_model_len,
        )
    return min(ready.model.max_model_len, slots)


def _tenant_weights(config: EngineConfig) -> dict[str, float]:
    pairs = (part.rpartition("=") for part in config.tenant_weight)
    return {name: float(weight) for name, _, weight in pairs}


def _num_rows(config: EngineConfig) -> int:
    """Sequences that run at once: each needs a token of every step's budget."""
    return min(config.max_num_seqs, config.max_num_batched_tokens)
