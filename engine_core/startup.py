"""Decisions made once, between the configuration and the first step."""

import dataclasses
import logging
import secrets
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine_core.adapters.hub import HubAdapters
from engine_core.adapters.sources import AdapterOptions, AdapterSources
from engine_core.context import MAX_PRIORITY, Identity, Limits
from engine_core.intake.overload import QueueBounds
from engine_core.io.remote_ranks import RemoteRanks
from engine_core.kv_cache.hash_key import FLAG as KEY_FLAG
from engine_core.kv_cache.hash_key import read_key
from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.kv_transfer.pulls import NO_TRANSFER, Peers, TransferOptions
from engine_core.queue.base import FAIR
from engine_core.queue.token_counters import Weights
from engine_core.recording.file import RecordingWriter
from engine_core.recording.recorder import RecordedScheduler
from engine_core.scheduler.scheduler import Scheduler
from engine_core.speculation import parse_speculation
from pagewire import __version__
from pagewire.checkpoints.files import config_overrides
from pagewire.checkpoints.paths import checkpoint_path, tokenizer_folder
from pagewire.config import EngineConfig, WorkerConfig
from pagewire.errors import StartupError
from pagewire.host.liveness import LEAST_PATIENCE_S
from pagewire.host.nodes import check_nodes
from pagewire.host.resources import by_node, format_cores, parse_cores
from pagewire.internal.v1.engine_pb2 import (
    CORE_ROLE_DECODE,
    CORE_ROLE_PREFILL,
    CORE_ROLE_UNSPECIFIED,
    ModelFacts,
    NamedAdapter,
    Welcome,
)
from pagewire.internal.v1.worker_pb2 import (
    KV_TRANSFER_NIXL,
    KV_TRANSFER_UNSPECIFIED,
    Initialize,
    Ready,
    Speculation,
)
from pagewire.limits import is_adapter_name
from pagewire.v1.admin_pb2 import Parallelism

log = logging.getLogger(__name__)

_CANNOT_START = "cannot start the engine core"
_DEFAULT_MAX_LORAS = 8
_KV_TRANSFERS = {"tcp": KV_TRANSFER_UNSPECIFIED, "nixl": KV_TRANSFER_NIXL}
_NIXL = "nixl", "nixl_cu12", "nixl_cu13"
"""Packages, any of which is enough."""
_ROLES = {"both": CORE_ROLE_UNSPECIFIED, "prefill": CORE_ROLE_PREFILL, "decode": CORE_ROLE_DECODE}


def check_config(config: EngineConfig) -> None:
    """Raises StartupError for values that cannot work or are not supported, naming the flag."""
    _check_combinations(config)
    _read_speculation(config)
    pinned_adapters(config)
    config_overrides(config.hf_overrides)
    for field in dataclasses.fields(config):
        _check_range(field, getattr(config, field.name))


def _check_range(field: "dataclasses.Field[Any]", value: Any) -> None:
    """Checks one value, or the number of each pair NAME=X, against the range of its flag."""
    lowest, highest = field.metadata["at_least"], field.metadata["at_most"]
    if value is None or (lowest is None and highest is None):
        return
    flag = "--" + field.name.replace("_", "-")
    numbers: dict[str, float] = {flag: value}
    if isinstance(value, tuple):
        pairs = (part.rpartition("=") for part in value)
        numbers = {f"{flag} {name}": float(number) for name, _, number in pairs}
    for name, number in numbers.items():
        if not (lowest is None or number >= lowest) or not (highest is None or number <= highest):
            allowed = f"at least {lowest}" if highest is None else f"{lowest} to {highest}"
            raise StartupError(_CANNOT_START, f"{name} is {number}", f"use {allowed}")


def _check_combinations(config: EngineConfig) -> None:
    if config.listen_workers.startswith("tcp://") and not config.external_workers:
        raise StartupError(
            _CANNOT_START,
            "--listen-workers is tcp://, but the engine core's own worker connects by ipc://",
            "add --external-workers, or leave it out",
        )
    check_nodes(config)
    for flag, value in (
        ("--external-workers", config.external_workers),
        ("--data-parallel-size", config.data_parallel_size > 1),
        (f"--device {config.device}", config.device in ("cuda", "simulated")),
    ):
        if value and config.nnodes > 1:
            why = f"--nnodes {config.nnodes} with {flag}"
            raise StartupError(_CANNOT_START, why, "ranks on several hosts compute one model, on CPUs")
    if config.num_blocks and config.kv_cache_memory:
        raise StartupError(
            _CANNOT_START,
            "--num-blocks and --kv-cache-memory both size the KV cache",
            "leave one of them out",
        )
    if config.prefix_cache_key and config.no_prefix_cache:
        raise StartupError(
            _CANNOT_START, f"{KEY_FLAG} names blocks of the prefix cache", "leave out --no-prefix-cache"
        )
    _check_role(config)
    _check_transfer(config)
    if config.record_tokens and not config.record:
        raise StartupError(_CANNOT_START, "--record-tokens without --record", "add --record FILE")
    if 0 < config.hang_timeout < LEAST_PATIENCE_S:
        raise StartupError(
            _CANNOT_START,
            f"--hang-timeout is {config.hang_timeout}",
            f"use 0, or at least {LEAST_PATIENCE_S}",
        )


def _check_role(config: EngineConfig) -> None:
    """Raises StartupError for a core whose requests could not go on elsewhere with copies of their blocks."""
    if config.role == "both":
        return
    if config.keeps_blocks_by:
        why = f"--role {config.role} with {config.keeps_blocks_by}: KV blocks cannot be copied"
        raise StartupError(_CANNOT_START, why, "leave out one of them")
    if not config.prefix_cache_key:
        why = f"--role {config.role} without {KEY_FLAG}: blocks of two cores would have other names"
        raise StartupError(_CANNOT_START, why, f"give all cores one {KEY_FLAG} FILE")


def _check_transfer(config: EngineConfig) -> None:
    """Raises StartupError for NIXL where it is missing, or carries nothing."""
    if config.kv_transfer != "nixl":
        return
    if not config.external_workers and not any(map(find_spec, _NIXL)):
        why = "--kv-transfer nixl, and NIXL is not installed"
        raise StartupError(_CANNOT_START, why, "pip install 'pagewire[nixl]'")
    if not config.prefix_cache_key:
        why = f"--kv-transfer nixl without {KEY_FLAG}: no blocks are exchanged with other cores"
        raise StartupError(_CANNOT_START, why, f"give all cores one {KEY_FLAG} FILE, or leave it out")


def initialize_message(config: EngineConfig) -> Initialize:
    """Returns the first message to each rank of the worker. Raises StartupError if there is no such model, or
    --speculate is wrong."""
    speculation, model_path = _read_speculation(config), str(checkpoint_path(config.model))
    if speculation is not None and speculation.model_path:
        speculation.model_path = str(checkpoint_path(speculation.model_path))
    return Initialize(
        model_path=model_path,
        device=config.device,
        dtype=config.dtype,
        quantization="" if config.quantization == "none" else config.quantization,
        plain_head=config.no_quantize_head,
        kv_cache_dtype="" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
        cpu_kernels="" if config.cpu_kernels == "auto" else config.cpu_kernels,
        load_format=config.load_format,
        max_model_len=config.max_model_len,
        max_num_seqs=_num_rows(config),
        max_num_batched_tokens=config.max_num_batched_tokens,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        kv_cache_bytes=int(config.kv_cache_memory * (1 << 30)),
        gpu_memory_utilization=config.gpu_memory_utilization,
        enforce_eager=config.enforce_eager,
        fast_matmul=config.fast_matmul,
        seed=config.dummy_seed,
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        num_hosts=config.nnodes if config.nnodes > 1 else 0,
        group_name=secrets.token_hex(16) if config.num_ranks > 1 else "",
        profile=config.profile,
        swap_space_bytes=int(config.swap_space * (1 << 30)),
        data_parallel_size=config.data_parallel_size,
        speculation=speculation,
        model_impl=config.model_impl,
        config_overrides=config.hf_overrides,
        tokenizer_path=str(tokenizer_folder(config.tokenizer) or ""),
        trust_remote_code=config.trust_remote_code,
        no_structured_output=config.no_structured_output,
        state_checkpoints=0 if config.no_prefix_cache else config.state_checkpoints,
        cache_secret=secrets.token_bytes(32),
        cache_key=read_key(config.prefix_cache_key) if config.prefix_cache_key else b"",
        kv_transfer=_KV_TRANSFERS[config.kv_transfer],
        trusts_network=config.trusted_network,
        encoder_cache_tokens=config.encoder_cache_tokens,
        max_loras=config.max_loras or (_DEFAULT_MAX_LORAS if _may_load_adapters(config) else 0),
    )


def make_scheduler(config: EngineConfig, ready: Ready, recording: RecordingWriter | None = None) -> Scheduler:
    """Returns a scheduler over the worker's blocks. recording: where its calls are recorded."""
    kind: Callable[..., Scheduler] = Scheduler
    if recording is not None:
        kind = partial(RecordedScheduler, recording, with_tokens=config.record_tokens)
    return kind(
        num_blocks=ready.num_blocks,
        block_size=config.block_size,
        max_num_seqs=_num_rows(config),
        max_num_batched_tokens=config.max_num_batched_tokens,
        prefix_cache=_has_prefix_cache(config, ready),
        policy=config.policy,
        preempt_rows=config.preempt_rows,
        share_rows=not config.no_row_sharing,
        state_checkpoints=ready.num_state_checkpoints,
        weights=Weights(config.prompt_token_weight, config.output_token_weight, _tenant_weights(config)),
        num_host_blocks=0 if ready.model.whole_prompts else ready.num_host_blocks,
        swap_costs=SwapCosts(ready.prefill_us_per_token, ready.swap_us_per_block),
        samples_per_row=1 + ready.draft_tokens,
        speculative_tokens_per_step=ready.draft_batch,
        burst_seconds=config.burst_ms / 1000 if ready.takes_bursts else 0.0,
        max_adapters_per_step=ready.model.max_adapters_per_step,
        whole_prompts=ready.model.whole_prompts,
        encoder_cache_tokens=_encoder_cache_tokens(config, ready),
        whole_media=ready.model.whole_media,
        max_num_encoder_tokens=_max_num_encoder_tokens(config, ready),
        stages=max(1, ready.stages) if config.scheduling == "ahead" else 1,
        micro_batch_rows=max(1, ready.micro_batch_rows),
    )


def _encoder_cache_tokens(config: EngineConfig, ready: Ready) -> int:
    """Returns how many vectors of media the worker keeps."""
    return config.encoder_cache_tokens or max(config.max_num_batched_tokens, ready.max_item_vectors)


def _max_num_encoder_tokens(config: EngineConfig, ready: Ready) -> int:
    """Returns how many vectors of media a step encodes, which by default take half as long as its tokens: a
    step that has both takes 1.5 times as long."""
    tokens = config.max_num_batched_tokens
    if ready.tokens_per_vector:
        tokens = max(1, tokens // 2 // ready.tokens_per_vector)
    return config.max_num_encoder_tokens or tokens


def _whole_item_room(config: EngineConfig) -> int:
    """Returns how many tokens of one prompt a step can always compute, whatever other rows decode."""
    return max(config.max_num_batched_tokens - _num_rows(config) + 1, 1)


def _has_prefix_cache(config: EngineConfig, ready: Ready) -> bool:
    """Returns whether prompts share blocks. Logs why not, where that is the model's doing."""
    if config.no_prefix_cache:
        return False
    if ready.has_states and not ready.num_state_checkpoints:
        log.info(
            "no prefix cache: layers of %s keep a state per row, and --state-checkpoints is 0",
            ready.model.architecture,
        )
        return False
    return not (ready.depends_on_prompt_len or ready.model.whole_prompts)


def _read_speculation(config: EngineConfig) -> Speculation | None:
    try:
        return parse_speculation(config.speculate)
    except ValueError as error:
        raise StartupError(_CANNOT_START, f"--speculate: {error}", "correct it, or leave it out") from error


def queue_bounds(config: EngineConfig) -> QueueBounds:
    """Returns how much may wait in the queue."""
    return QueueBounds(config.max_num_queued_reqs, config.max_num_queued_tokens, config.max_queue_wait)


def make_identity(config: EngineConfig, ready: Ready, start_time_ns: int) -> Identity:
    """Returns what frontends are told, and the limits of requests. Raises StartupError."""
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
        parallelism=Parallelism(
            tensor=config.tensor_parallel_size, pipeline=config.pipeline_parallel_size, data=1, expert=1
        ),
        max_priority=MAX_PRIORITY if config.policy == FAIR else 0,
        max_draft_tokens=ready.draft_tokens,
        eos_origins=ready.eos_origins,
        lora_folder=str(Path(config.lora_folder).absolute()) if config.lora_folder else "",
        role=_ROLES[config.role],
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
        has_grammars=bool(model.grammar_engine),
        embedding_size=model.embedding_size,
        head_sizes=tuple(model.head_sizes),
        input_embedding_size=model.input_embedding_size,
        media_kinds=frozenset(model.media_kinds),
        max_item_vectors=_encoder_cache_tokens(config, ready),
        max_whole_item=_whole_item_room(config) if model.whole_media else None,
        adapters_caveat=model.adapters_caveat,
        whole_prompts=model.whole_prompts,
    )
    return Identity(welcome, limits)


def _may_load_adapters(config: EngineConfig) -> bool:
    return bool(config.lora or config.lora_folder or config.lora_hub)


def pinned_adapters(config: EngineConfig) -> list[NamedAdapter]:
    """Returns the adapters of --lora. Raises StartupError."""
    adapters = []
    for part in config.lora:
        name, equals, source = part.partition("=")
        if not (equals and source and is_adapter_name(name)):
            todo = "use NAME=FOLDER; a name has letters, digits and ._:@- behind the first"
            raise StartupError(_CANNOT_START, f"--lora {part} names no adapter", todo)
        adapters.append(NamedAdapter(name=name, source=str(Path(source).absolute()), pinned=True))
    if len({each.name for each in adapters}) < len(adapters):
        raise StartupError(_CANNOT_START, "--lora has a name twice", "use other names")
    return adapters


def adapter_options(config: EngineConfig, ready: Ready, deaths: Path) -> AdapterOptions:
    """deaths: see AdapterSources."""
    folders = tuple(each.source for each in pinned_adapters(config))
    parent = str(Path(config.lora_folder).absolute()) if config.lora_folder else ""
    hub = HubAdapters(config.lora_hub, config.download_dir)
    sources = AdapterSources(folders, parent, deaths, hub, is_adopted=ready.HasField("kept_cache"))
    return AdapterOptions(sources, int(config.lora_memory * (1 << 30)), tuple(ready.adapters))


def transfer_options(config: EngineConfig, ready: Ready, peers: Peers) -> TransferOptions:
    """Returns how blocks move. In a recording they do not: a replay has no other core. Raises StartupError
    for a role that needs them to, where the worker cannot copy them."""
    if config.role != "both" and not ready.transfer_address:
        raise StartupError(
            _CANNOT_START,
            f"--role {config.role}: the worker of {ready.model.architecture} cannot copy its KV blocks:"
            " its layers have states, it drafts with a model or heads, or its device is no CPU",
            "leave it out; docs/distributed.md says what can be copied",
        )
    if config.record or config.no_prefix_cache:
        return NO_TRANSFER
    costs = SwapCosts(ready.prefill_us_per_token)
    return TransferOptions(peers, ready.transfer_address, ready.transfer_block_bytes, costs)


def worker_arguments(config: EngineConfig) -> list[list[str]]:
    """Returns the command-line arguments of each rank of this host, beyond its address and number. Raises
    StartupError."""
    if config.external_workers and (config.threads or config.worker_cores):
        raise StartupError(
            _CANNOT_START,
            "--threads and --worker-cores are for a worker that the engine core starts",
            "give them to the worker: --threads, --cores",
        )
    shared = [f"--log-level={config.log_level}", f"--log-format={config.log_format}"]
    shared += [f"--threads={config.threads}"] if config.threads else []
    shared += ["--outlives-core"] if config.parent_starts_worker and config.nnodes == 1 else []
    if config.nnodes > 1:
        shared += [f"--master-addr={config.master_addr}", f"--group-size={config.num_ranks}"]
    shared += _fault_arguments(config)
    cores = _cores_by_rank(config)
    return [shared + ([f"--cores={own}"] if own else []) for own in cores]


def remote_ranks(config: EngineConfig) -> RemoteRanks | None:
    """Returns the ranks that other hosts have; None: all are on this one."""
    if config.nnodes == 1:
        return None
    count = config.num_ranks - config.ranks_per_node
    return RemoteRanks(f"tcp://{config.master_addr}:{config.master_port}", count, config.ranks_per_node)


def _cores_by_rank(config: EngineConfig) -> list[str]:
    """Divides --worker-cores into equal parts, of as few NUMA nodes as possible; "" for ranks that are not
    pinned."""
    size = config.ranks_per_node
    if size == 1 or not config.worker_cores:
        return [config.worker_cores] * size
    cores = by_node(parse_cores(config.worker_cores))
    bounds = [len(cores) * rank // size for rank in range(size + 1)]
    return [format_cores(cores[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]


def _fault_arguments(config: EngineConfig) -> list[str]:
    known = {field.name for field in dataclasses.fields(WorkerConfig)}
    arguments = []
    for fault in config.worker_fault:
        name = "fault-" + fault.partition("=")[0]
        why = ""
        if name.replace("-", "_") not in known:
            why = "no worker knows it"
        if config.external_workers or config.device == "cuda":
            why = "only a simulated device or a CPU that the engine core starts fails on purpose"
        if why:
            raise StartupError(_CANNOT_START, f"--worker-fault {fault}: {why}", "leave it out")
        arguments.append("--fault-" + fault)  # the worker checks its value
    return arguments


def _max_model_len(config: EngineConfig, ready: Ready) -> int:
    """Returns the worker's context length, or less: a sequence of full length must fit into the pool."""
    slots = ready.num_blocks * config.block_size
    if ready.model.max_model_len < 2 or slots < 2:
        raise StartupError(
            _CANNOT_START,
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
    """Returns how many sequences run at once: each needs a token of every step's budget."""
    return min(config.max_num_seqs, config.max_num_batched_tokens)
