"""What the page is sent, made from the messages of AdminService."""

from collections.abc import Iterable
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict

from frontend.engine.core import Core
from pagewire.internal.v1.engine_pb2 import NamedAdapter
from pagewire.v1 import inspection_pb2

Json = dict[str, Any]

REQUEST_COLUMNS = (
    "id",
    "tenant",
    "priority",
    "phase",
    "cause",
    "age",
    "prompt",
    "cached",
    "output",
    "blocks",
    "shared",
    "preemptions",
    "rank",
)
_PHASES = {
    value: name.removeprefix("REQUEST_PHASE_").lower().replace("_", " ")
    for name, value in inspection_pb2.RequestPhase.items()
}
_CAUSES = {
    value: name.removeprefix("WAIT_CAUSE_").lower() if value else ""
    for name, value in inspection_pb2.WaitCause.items()
}
_STATES = {
    value: name.removeprefix("ENGINE_STATE_").lower() for name, value in inspection_pb2.EngineState.items()
}
_EVENTS = {
    inspection_pb2.ENGINE_EVENT_KIND_SERVES: "serves",
    inspection_pb2.ENGINE_EVENT_KIND_LOST: "died or fell silent",
    inspection_pb2.ENGINE_EVENT_KIND_RESUMED: "resumed requests of another one",
    inspection_pb2.ENGINE_EVENT_KIND_QUARANTINED: "died whenever a request ran, which was ended",
}


def requests_view(response: inspection_pb2.ListRequestsResponse) -> Json:
    """Returns requests as rows of REQUEST_COLUMNS: with 500 of them names would be most of the bytes."""
    rows = [
        (
            each.request_id,
            each.tenant,
            each.priority,
            _PHASES[each.phase],
            _CAUSES[each.waits_for],
            _seconds(each.age),
            each.prompt_tokens,
            each.cached_prompt_tokens,
            each.output_tokens,
            each.blocks,
            each.shared_blocks,
            each.preemptions,
            each.rank if each.HasField("rank") else None,
        )
        for each in response.requests
    ]
    return {"columns": REQUEST_COLUMNS, "rows": rows, "total": response.total}


def pools_view(response: inspection_pb2.GetKvPoolResponse) -> list[Json]:
    """Returns the pictures of KV pools."""
    return [
        {
            "rank": pool.rank,
            "block_size": pool.block_size,
            "num_blocks": pool.num_blocks,
            "held": pool.held_blocks,
            "shared": pool.shared_blocks,
            "cached": pool.free_cached_blocks,
            "host": pool.num_host_blocks,
            "used_host": pool.used_host_blocks,
            "per_cell": pool.blocks_per_cell,
            "cells": [
                list(pool.cell_held),
                list(pool.cell_shared),
                list(pool.cell_free_cached),
                list(pool.cell_holder),
            ],
            "holders": [(holder.request_id, holder.tenant, holder.blocks) for holder in pool.holders],
        }
        for pool in response.pools
    ]


def tenants_view(response: inspection_pb2.ListTenantsResponse) -> list[Json]:
    """Returns tenants, by engine core."""
    return [
        {
            "rank": each.rank,
            "tenant": each.tenant,
            "requests": each.requests,
            "running": each.running_sequences,
            "waiting": each.waiting_sequences,
            "waiting_tokens": each.waiting_tokens,
            "weight": each.weight,
            "share": each.share,
            "served": each.served,
        }
        for each in response.tenants
    ]


def adapters_view(adapters: Iterable[NamedAdapter]) -> list[Json]:
    """Returns LoRA adapters, those with the most requests first."""
    return [
        {
            "name": each.name,
            "tenants": list(each.tenants),
            "loaded": each.loaded,
            "pinned": each.pinned,
            "requests": each.requests,
            "rank": each.rank,
            "bytes": each.bytes,
            "digest": each.digest.hex(),
        }
        for each in sorted(adapters, key=lambda each: (-each.requests, not each.loaded, each.name))
    ]


def engines_view(response: inspection_pb2.ListEnginesResponse, cores: Iterable[Core]) -> list[Json]:
    """Returns engine cores with their loads as of the last heartbeat. cores: of which the response tells."""
    loads = {core.rank: core.last_load for core in cores}
    return [_engine(each) | _load(loads.get(each.rank)) for each in response.engines]


def _engine(info: inspection_pb2.EngineInfo) -> Json:
    return {
        "rank": info.rank,
        "state": f"{_STATES[info.state]}: {info.differs}" if info.differs else _STATES[info.state],
        "device": " ".join(part for part in (info.device, info.arithmetic) if part),
        "version": info.version,
        "since": info.start_time.ToMilliseconds() / 1e3 if info.HasField("start_time") else None,
        "unanswered": info.unanswered_heartbeats,
    }


def _load(load: Any) -> Json:
    if load is None:
        return {}
    return {
        "running": load.running_requests,
        "waiting": load.waiting_requests,
        "tokens_per_second": load.output_tokens_per_second,
        "hit_rate": load.prefix_cache_hit_rate,
        "preemptions": load.preemptions,
        "refused": sum(load.refused_requests.values()),
    }


def events_view(response: inspection_pb2.ListEnginesResponse) -> list[Json]:
    """Returns deaths and resumptions, the latest first."""
    return [
        {
            "time": each.time.ToMilliseconds() / 1e3,
            "rank": each.rank,
            "what": _EVENTS[each.kind],
            "requests": each.requests,
            "instance": each.instance_id,
        }
        for each in response.events
    ]


def explanation_view(response: inspection_pb2.ExplainRequestResponse) -> Json:
    """Returns an explanation with the names of the protocol; durations are like "0.25s"."""
    view: Json = MessageToDict(response, preserving_proto_field_name=True)
    view["request"] |= {
        "phase": _PHASES[response.request.phase],
        "waits_for": _CAUSES[response.request.waits_for],
    }
    for shown, sequence in zip(view.get("sequences", ()), response.sequences, strict=True):
        shown["phase"] = _PHASES[sequence.phase]
    return view


def _seconds(duration: Duration) -> float:
    return round(duration.seconds + duration.nanos / 1e9, 3)
