"""Flags that several processes have, and how a flag is declared."""

from dataclasses import dataclass, field
from typing import Any, Literal

MetricsNames = Literal["pagewire", "vllm"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

MAX_COUNT = (1 << 32) - 1
"""The largest count in messages between processes, which have fields of 32 bits."""
DEMO_MODEL = "demo"
"""Name of the model that ships with the package."""
NO_PORT = -1
"""Value of --http-port: none."""


def flag(
    default: Any,
    help: str,
    *,
    common: bool = False,
    metavar: str | None = None,
    positional: bool = False,
    pairs: bool = False,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Any:
    """Declares a field that is also a flag.

    common: shown by `--help`; others only by `--help-all`.
    positional: may also be given without its name.
    pairs: NAME=NUMBER, repeatable; a mapping in a file.
    at_least, at_most: the range of a number, inclusive.
    """
    metadata = {
        "help": help,
        "common": common,
        "metavar": metavar,
        "positional": positional,
        "pairs": pairs,
        "at_least": at_least,
        "at_most": at_most,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class CommonConfig:
    """Flags of every process."""

    log_level: LogLevel = flag("info", "least severe log lines to print")
    log_format: LogFormat = flag("text", "format of log lines; json: one object per line")
    process_name: str = flag("", "name of this process in logs and metrics", metavar="NAME")
    curve_key: str = flag("", "keys for tcp:// between processes (see: pagewire keys --help)", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class WatchedConfig(CommonConfig):
    """Flags of processes with metrics and health pages."""

    http_host: str = flag("127.0.0.1", "address of the HTTP port")
    http_port: int | None = flag(
        None,
        "HTTP port of metrics, usually 9464; -1: none",
        common=True,
        at_least=-1,
        at_most=65535,
    )
    http_tls_cert: str = flag("", "PEM file with the certificate of the HTTP port", metavar="FILE")
    http_tls_key: str = flag("", "PEM file with its key", metavar="FILE")
    metrics_names: MetricsNames = flag("pagewire", "vllm: metrics have vLLM's names, too")
    http_socket: str = flag("", "Unix socket for the same pages, for a supervisor", metavar="PATH")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(WatchedConfig):
    """Flags on which frontends and engine cores must agree."""

    model: str = flag(
        DEMO_MODEL,
        "folder, GGUF file or Hugging Face name; default: the demo",
        common=True,
        metavar="MODEL",
        positional=True,
    )
    standby: bool = flag(
        False, "import everything, then fork processes that serve, as the parent orders: see pagewire serve"
    )
    tokenizer: str = flag(
        "",
        "folder with tokenizer and chat template, or with serve a hub name; default: MODEL",
        metavar="MODEL",
    )
    hf_overrides: str = flag(
        "", "JSON object with fields that go before those of the checkpoint's config.json", metavar="JSON"
    )
