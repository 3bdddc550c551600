"""pagewire: large language models served over gRPC."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagewire.errors import PagewireError as PagewireError
    from pagewire.errors import StartupError as StartupError
    from pagewire.llm import LLM as LLM
    from pagewire_client.aio import AsyncClient as AsyncClient
    from pagewire_client.audio import Audio as Audio
    from pagewire_client.images import Image as Image
    from pagewire_client.images import Video as Video
    from pagewire_client.params import BeamSearch as BeamSearch
    from pagewire_client.params import SamplingParams as SamplingParams
    from pagewire_client.sync import Client as Client
    from pagewire_client.tools import tool as tool

__version__ = "2026.11.0"

_HOMES = {
    "AsyncClient": "pagewire_client.aio",
    "Audio": "pagewire_client.audio",
    "BeamSearch": "pagewire_client.params",
    "Client": "pagewire_client.sync",
    "Image": "pagewire_client.images",
    "LLM": "pagewire.llm",
    "PagewireError": "pagewire.errors",
    "SamplingParams": "pagewire_client.params",
    "StartupError": "pagewire.errors",
    "Video": "pagewire_client.images",
    "tool": "pagewire_client.tools",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    """Imports what is asked for: `import pagewire` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pagewire' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
