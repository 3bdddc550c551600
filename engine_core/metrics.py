"""Metrics of the core beside its counters: readings of the scheduler, the sockets and the worker.

The worker has no HTTP port: an HTTP thread would take the interpreter's lock from the step, which on a GPU is
bound by launches from Python. Its measurements come with its results, and the core reports them.
"""

import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest

from engine_core.core import EngineCore
from engine_core.counters import Counters
from engine_core.io.frontend_sockets import FrontendSockets
from engine_core.io.worker_group import WorkerGroup
from engine_core.queue.fair import FairQueue
from pagewire.internal.v1.worker_pb2 import Ready
from pagewire.telemetry.board import Board
from pagewire.telemetry.figures import MOST_NAMES, OTHERS, Metric, Reading, metrics_of
from pagewire.telemetry.vllm_names import PREFIX

_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an engine core's process."""

    core: EngineCore
    frontends: FrontendSockets
    worker: WorkerGroup
    ready: Ready


def watch(board: Board, parts: Parts, *, for_vllm: bool = False) -> None:
    """Adds all metrics to the board. for_vllm: also those that only vLLM has."""
    board.add_counters(parts.core.counters)
    board.add_readings(parts, READINGS)
    if for_vllm and not parts.ready.model.adapters_caveat:
        board.add_readings(parts, VLLM_READINGS)
    number = re.search(r"-\d+$", board.process)  # one of several engine cores, each with its worker
    for rank, pid in enumerate(parts.worker.pids):
        name = f"worker{number.group() if number else ''}"
        board.add_system(f"{name}.{rank}" if rank else name, pid)


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "gauge", help, labels)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "counter", help, labels)


def _blocks(parts: Parts) -> Mapping[str, float]:
    pool = parts.core.scheduler.pool
    free = pool.num_free
    return {"used": pool.num_blocks - free, "free": free}


def _preemptions(parts: Parts) -> Mapping[str, float]:
    scheduler = parts.core.scheduler
    swapped = scheduler.swap.num_swapped_out
    return {"recompute": scheduler.num_preemptions - swapped, "swap": swapped}


def _bad_frames(parts: Parts) -> Mapping[str, float]:
    return {"frontends": parts.frontends.num_bad_frames, "workers": parts.worker.num_bad_frames}


def _tenants(parts: Parts) -> Mapping[str, float]:
    queue = parts.core.scheduler.waiting
    if not isinstance(queue, FairQueue):
        return {}
    counters = queue.tenants.counters()
    largest = nlargest(MOST_NAMES, counters.items(), key=lambda pair: pair[1])
    shown = {name[:_LONGEST_NAME]: value for name, value in largest}
    if len(counters) > len(shown):
        shown[OTHERS] = sum(counters.values()) - sum(shown.values())
    return shown


def _requests_by_adapter(parts: Parts) -> dict[str, Counter[str]]:
    """Returns how many requests run and wait, by adapter."""
    found: dict[str, Counter[str]] = {"running": Counter(), "waiting": Counter()}
    for request in list(parts.core.scheduler.requests):  # the step loop changes them meanwhile
        if (adapter := request.parameters.adapter) is not None:
            found["running" if request.num_running else "waiting"][adapter.name] += 1
    return found


def _adapter_requests(parts: Parts) -> Mapping[tuple[str, str], float]:
    by_state = _requests_by_adapter(parts)
    shown = dict(sum(by_state.values(), Counter[str]()).most_common(MOST_NAMES))
    found: Counter[tuple[str, str]] = Counter({(OTHERS, state): 0 for state in by_state})
    for state, counts in by_state.items():
        for name, number in counts.items():
            found[name if name in shown else OTHERS, state] += number
    return found


def _lora_requests_info(parts: Parts) -> Mapping[tuple[str, ...], float]:
    """Returns the time by vLLM's labels: how many adapters a step may have, and which have requests: those
    with the most, as many as rows."""
    rows = parts.core.scheduler.num_rows
    most = min(parts.core.scheduler.planner.adapter_slots.num_slots or rows, rows)
    names = [
        ",".join(sorted(name for name, _ in counts.most_common(rows)))
        for counts in _requests_by_adapter(parts).values()
    ]
    return {(str(most), *names): time.time()}


READINGS: tuple[Reading[Parts], ...] = (
    Reading(
        _counter("pagewire_core_steps_total", "Steps that were planned."),
        lambda parts: parts.core.scheduler.step,
    ),
    Reading(
        _gauge("pagewire_core_epoch_start_seconds", "When this start of the core began, in Unix time."),
        lambda parts: parts.core.epoch / 1e9,
    ),
    Reading(
        _gauge("pagewire_core_requests_running", "Requests of which at least one sequence runs."),
        lambda parts: parts.core.scheduler.num_running_requests,
    ),
    Reading(
        _gauge("pagewire_core_requests_waiting", "Requests of which no sequence runs."),
        lambda parts: len(parts.core.scheduler.requests) - parts.core.scheduler.num_running_requests,
    ),
    Reading(
        _gauge("pagewire_core_rows", "Rows that sequences hold, including those reserved for siblings."),
        lambda parts: parts.core.scheduler.num_rows - len(parts.core.scheduler.rows.free),
    ),
    Reading(
        _gauge("pagewire_core_sequences_swapped", "Sequences that wait with their blocks in host memory."),
        lambda parts: parts.core.scheduler.swap.num_copies,
    ),
    Reading(
        _gauge("pagewire_core_waiting_tokens", "Tokens to compute for waiting sequences."),
        lambda parts: parts.core.scheduler.waiting.num_tokens,
    ),
    Reading(
        _gauge("pagewire_core_kv_blocks", "KV blocks: used (held by sequences) and free.", "state"),
        _blocks,
    ),
    Reading(
        _gauge("pagewire_core_kv_usage", "Share of the KV blocks that sequences hold, 0 to 1."),
        lambda parts: parts.core.scheduler.pool.usage,
    ),
    Reading(
        _gauge("pagewire_core_kv_blocks_cached", "KV blocks of known content, free or used."),
        lambda parts: parts.core.scheduler.pool.num_cached,
    ),
    Reading(
        _gauge("pagewire_core_kv_block_tokens", "Tokens in a KV block."),
        lambda parts: parts.core.scheduler.tables.block_size,
    ),
    Reading(
        _gauge("pagewire_core_cache_info", "1; tokens in a KV block, and blocks.", "block_tokens", "blocks"),
        lambda parts: {
            (str(parts.core.scheduler.tables.block_size), str(parts.core.scheduler.pool.num_blocks)): 1.0
        },
    ),
    Reading(
        _counter("pagewire_core_kv_sampled_slots_total", "Slots of blocks in use, summed over samples."),
        lambda parts: parts.core.scheduler.fragmentation.num_allocated,
    ),
    Reading(
        _counter("pagewire_core_kv_empty_slots_total", "Of these: slots without a computed token (waste)."),
        lambda parts: parts.core.scheduler.fragmentation.num_empty,
    ),
    Reading(
        _counter("pagewire_core_prefix_cache_queries_total", "Tokens looked for in the prefix cache."),
        lambda parts: parts.core.scheduler.prefix_cache.hit_rate.num_asked,
    ),
    Reading(
        _counter("pagewire_core_prefix_cache_hits_total", "Of these: tokens that were found."),
        lambda parts: parts.core.scheduler.prefix_cache.hit_rate.num_found,
    ),
    Reading(
        _counter(
            "pagewire_core_preemptions_total", "Preempted sequences, by what became of their blocks.", "kind"
        ),
        _preemptions,
    ),
    Reading(
        _gauge("pagewire_core_suspects", "Requests that ran when an earlier core died, not cleared yet."),
        lambda parts: parts.core.scheduler.quarantine.num_suspects,
    ),
    Reading(
        _counter(
            "pagewire_core_bad_frames_total", "Messages that could not be decoded, by socket.", "socket"
        ),
        _bad_frames,
    ),
    Reading(
        _gauge("pagewire_core_backlog_bytes", "Bytes queued for frontends that read too slowly."),
        lambda parts: sum(parts.frontends.backlog_bytes()),
    ),
    Reading(
        _gauge("pagewire_core_largest_backlog_bytes", "Of these: for the slowest frontend."),
        lambda parts: max(parts.frontends.backlog_bytes(), default=0),
    ),
    Reading(
        _gauge(
            "pagewire_core_tenant_service",
            "Weighted tokens that a tenant was served, as fair queueing counts; the largest, and all others.",
            "tenant",
        ),
        _tenants,
    ),
    Reading(
        _gauge("pagewire_core_adapters_named", "Adapters that requests can name."),
        lambda parts: len(parts.core.adapter_names),
    ),
    Reading(
        _gauge("pagewire_core_adapters_loaded", "Adapters in the worker's memory."),
        lambda parts: len(parts.core.adapters),
    ),
    Reading(
        _gauge("pagewire_core_adapter_bytes", "Bytes of --lora-memory, by state: used and free.", "state"),
        lambda parts: {
            "used": parts.core.adapters.num_bytes,
            "free": max(parts.core.adapters.capacity - parts.core.adapters.num_bytes, 0),
        },
    ),
    Reading(
        _gauge(
            "pagewire_core_adapter_requests",
            "Requests in flight that have an adapter, by adapter and whether they run; the adapters with the"
            " most, and all others.",
            "adapter",
            "state",
        ),
        _adapter_requests,
    ),
    Reading(
        _counter(
            "pagewire_core_adapter_loads_total", "Adapters that were loaded, or could not be.", "outcome"
        ),
        lambda parts: {"loaded": parts.core.adapters.num_loaded, "failed": parts.core.adapters.num_failed},
    ),
    Reading(
        _counter(
            "pagewire_core_adapter_evictions_total", "Adapters that were dropped to make room for others."
        ),
        lambda parts: parts.core.adapters.num_dropped,
    ),
    Reading(
        _counter(
            "pagewire_core_encoded_items_total",
            "Items of media (images, tiles) that steps encoded: misses of the encoder cache.",
        ),
        lambda parts: parts.core.scheduler.encoder.num_encoded,
    ),
    Reading(
        _counter("pagewire_core_encoded_vectors_total", "Vectors that were made of them."),
        lambda parts: parts.core.scheduler.encoder.num_encoded_vectors,
    ),
    Reading(
        _counter(
            "pagewire_core_encoder_cache_hits_total",
            "Items of media that a chunk of a prompt needed, and that an earlier step had encoded.",
        ),
        lambda parts: parts.core.scheduler.encoder.num_hits,
    ),
    Reading(
        _gauge("pagewire_core_encoder_cache_vectors", "Vectors of the encoder cache, by state.", "state"),
        lambda parts: {
            "used": parts.core.scheduler.encoder.num_vectors,
            "free": parts.core.scheduler.encoder.capacity - parts.core.scheduler.encoder.num_vectors,
        },
    ),
    Reading(
        _gauge("pagewire_core_media_bytes", "Bytes of media of requests in flight (--media-memory)."),
        lambda parts: parts.core.scheduler.states.media.num_bytes,
    ),
    Reading(
        _gauge("pagewire_worker_weight_bytes", "Bytes of the model's weights."),
        lambda parts: parts.ready.model.weight_bytes,
    ),
    Reading(
        _gauge("pagewire_worker_kv_cache_bytes", "Bytes of the KV cache."),
        lambda parts: parts.ready.kv_cache_bytes,
    ),
    Reading(
        _gauge("pagewire_worker_threads", "CPU threads that compute."),
        lambda parts: parts.ready.num_threads,
    ),
    Reading(
        _gauge("pagewire_worker_swap_blocks", "Blocks of the swap space, by state.", "state"),
        lambda parts: {
            "used": parts.core.scheduler.swap.num_blocks - parts.core.scheduler.swap.num_free,
            "free": parts.core.scheduler.swap.num_free,
        },
    ),
)

VLLM_READINGS: tuple[Reading[Parts], ...] = (
    Reading(
        _gauge(
            f"{PREFIX}lora_requests_info",
            "Unix time; adapters of a step at most, and those of requests that run and that wait.",
            *("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        ),
        _lora_requests_info,
    ),
)

METRICS = (*metrics_of(Counters), *(each.metric for each in READINGS))
"""All metrics of an engine core, for docs/metrics.md."""
