"""How recordings hold what is no plan: requests, hashes of blocks, and the settings of the scheduler."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.queue.token_counters import Weights

COPIED = (
    "arrival",
    "max_tokens",
    "max_model_len",
    "priority",
    "tenant",
    "tenant_weight",
    "cache_bypass",
    "max_drafts",
    "time_limit_at",
    "deadline_at",
)
"""Fields of Request that are recorded as they are. Of the others recorder.py writes what plans depend on."""
HASH_BYTES = 8
"""Length of a block hash in the file. Among ten million blocks, two different blocks look equal once in 10^5
recordings."""
_CLASSES: dict[str, Any] = {"swap_costs": SwapCosts, "weights": Weights}


def write_settings(settings: Mapping[str, Any]) -> str:
    """Returns the keyword arguments of Scheduler as JSON text.

    Values are plain, or dataclasses of plain values and dictionaries.
    """
    return json.dumps(settings, default=dataclasses.asdict)


def read_settings(text: str) -> dict[str, Any]:
    """Returns what write_settings() was given."""
    settings: dict[str, Any] = json.loads(text)
    return {name: _CLASSES[name](**value) if name in _CLASSES else value for name, value in settings.items()}


def write_hashes(hashes: Iterable[bytes]) -> bytes:
    """Returns a column of the first HASH_BYTES of each hash."""
    return b"".join(block[:HASH_BYTES] for block in hashes)


def read_hashes(column: bytes, first: int = 0) -> dict[int, bytes]:
    """Returns the hashes of a column by block. first: the block of the first one."""
    size = HASH_BYTES
    return {first + i // size: column[i : i + size] for i in range(0, len(column), size)}
