"""`pagewire kv-events`: its flags, and what it needs installed."""

import asyncio
import contextlib
from dataclasses import dataclass

from pagewire import logs
from pagewire.cli.extras import require
from pagewire.command_config import ClientConfig
from pagewire.config import LogLevel, flag


@dataclass(frozen=True, kw_only=True)
class KvEventsConfig(ClientConfig):
    """`pagewire kv-events`: publishes over ZeroMQ what the prefix cache of a service holds."""

    endpoint: str = flag("tcp://127.0.0.1:5557", "where subscribers connect", common=True, metavar="ENDPOINT")
    replay_endpoint: str = flag(
        "", "where a subscriber asks for what it missed; default: nowhere", common=True, metavar="ENDPOINT"
    )
    topic: str = flag("", "of all messages; llm-d's indexer expects kv@ADDRESS@MODEL", common=True)
    buffer_steps: int = flag(10_000, "messages that a replay goes back", at_least=1, at_most=1_000_000)
    log_level: LogLevel = flag("info", "least severe log lines to print")


CONFIG = KvEventsConfig


def run(config: KvEventsConfig) -> int:
    """Publishes until a signal; returns 0. Raises StartupError and UsageError."""
    require("vllm", "publish events of the prefix cache")
    from pagewire_gateways.vllm.event_publisher import publish

    logs.setup("kv-events", config.log_level)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(publish(config))
    return 0
