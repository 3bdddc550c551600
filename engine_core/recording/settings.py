"""The keyword arguments of Scheduler as JSON text."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.queue.token_counters import Weights

_CLASSES: dict[str, Any] = {"swap_costs": SwapCosts, "weights": Weights}


def write_settings(settings: Mapping[str, Any]) -> str:
    """Returns settings as JSON. Values are plain, or dataclasses of plain values and dictionaries."""
    return json.dumps(settings, default=dataclasses.asdict)


def read_settings(text: str) -> dict[str, Any]:
    """Returns what write_settings() was given."""
    settings: dict[str, Any] = json.loads(text)
    return {name: _CLASSES[name](**value) if name in _CLASSES else value for name, value in settings.items()}
