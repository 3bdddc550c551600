"""How an engine core serves adapters."""

from dataclasses import dataclass, field

from engine_core.adapters.sources import AdapterSources
from pagewire.internal.v1.worker_pb2 import AdapterLoaded


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """What the configuration and the worker say of adapters."""

    sources: AdapterSources = field(default_factory=AdapterSources)
    capacity: int = 0
    """Bytes of memory of the worker for adapters (--lora-memory)."""
    held: tuple[AdapterLoaded, ...] = ()
    """What an adopted worker has loaded."""


NO_ADAPTERS = AdapterOptions()
"""There is no folder to load one from."""
