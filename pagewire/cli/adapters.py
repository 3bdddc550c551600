"""`pagewire adapters`."""

import json
from collections.abc import Iterable

from pagewire.cli.connect import connect
from pagewire.cli.terminal import aligned, as_json, shortened
from pagewire.command_config import AdaptersConfig
from pagewire.flags import UsageError
from pagewire.v1 import model_pb2

_HEAD = ("adapter", "tenants", "folder", "loaded", "pinned", "rank", "MiB", "streams")
_TEXT_COLUMNS = 3
_LONGEST = 60
"""Characters of a name or a folder."""


def run(config: AdaptersConfig) -> int:
    """Lists, loads or unloads LoRA adapters. Returns 0. Raises RpcError and UsageError."""
    _check(config)
    with connect(config) as client:
        if config.action == "unload":
            client.unload_adapter(config.name)
            return 0
        if config.action == "load":
            pinned, tenants = config.pinned, config.tenant
            found = [client.load_adapter(config.name, config.folder, pinned=pinned, tenants=tenants)]
        else:
            found = client.adapters()
    if config.json:
        print(json.dumps(as_json(model_pb2.ListAdaptersResponse(adapters=found))))
    elif config.action == "load":
        print(f"{found[0].name}: rank {found[0].rank}, digest {found[0].digest.hex()}")
    else:
        print("\n".join(adapter_lines(found)))
    return 0


def adapter_lines(adapters: Iterable[model_pb2.Adapter]) -> list[str]:
    """Returns a table of adapters."""
    rows = [_row(each) for each in adapters]
    return aligned([_HEAD, *rows], left=_TEXT_COLUMNS) if rows else ["no adapter has a name"]


def _check(config: AdaptersConfig) -> None:
    """Raises UsageError for words and flags that do not fit the action."""
    if config.action == "list" and config.name:
        raise UsageError("list takes no NAME")
    if config.action != "list" and not config.name:
        raise UsageError("NAME is missing", todo="pagewire adapters lists those that have a name")
    if config.action != "load" and (config.folder or config.pinned or config.tenant):
        raise UsageError("FOLDER, --pinned and --tenant are for load")
    if config.action == "unload" and config.json:
        raise UsageError("--json is for list and load")


def _row(adapter: model_pb2.Adapter) -> tuple[str, ...]:
    return (
        shortened(adapter.name, _LONGEST),
        shortened(", ".join(adapter.tenants), _LONGEST) or "all",
        shortened(adapter.source, _LONGEST),
        "yes" if adapter.loaded else "no",
        "yes" if adapter.pinned else "no",
        f"{adapter.rank:,}",
        f"{adapter.bytes / (1 << 20):,.1f}",
        f"{adapter.streams:,}",
    )


COMMANDS = {"adapters": (AdaptersConfig, run)}
