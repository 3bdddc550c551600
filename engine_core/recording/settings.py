"""The keyword arguments of Scheduler, as they are in a recording."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.queue.token_counters import Weights
from pagewire.internal.v1.recording_pb2 import RecordedFields, RecordedSetting

_KINDS = {bool: "flag", int: "integer", float: "number", str: "text"}
_CLASSES: dict[str, Any] = {"swap_costs": SwapCosts, "weights": Weights}


def write_settings(settings: Mapping[str, Any]) -> Iterator[RecordedSetting]:
    """Values are plain, or dictionaries or dataclasses of such."""
    for name, value in settings.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if isinstance(value, Mapping):
            yield RecordedSetting(name=name, fields=RecordedFields(fields=write_settings(value)))
        else:
            yield RecordedSetting(name=name, **{_KINDS[type(value)]: value})


def read_settings(settings: Iterable[RecordedSetting]) -> dict[str, Any]:
    """What write_settings() was given."""
    return {setting.name: _value(setting) for setting in settings}


def _value(setting: RecordedSetting) -> Any:
    kind = setting.WhichOneof("value")
    if kind != "fields":
        return getattr(setting, kind or "flag")
    fields = read_settings(setting.fields.fields)
    return _CLASSES[setting.name](**fields) if setting.name in _CLASSES else fields
