"""Flags of `pagewire serve`, and of two commands beside it."""

from dataclasses import dataclass
from typing import ClassVar

from pagewire.config.base import CommonConfig, flag
from pagewire.config.engine import EngineConfig
from pagewire.config.frontend import FrontendConfig
from pagewire.config.nodes import LauncherConfig


@dataclass(frozen=True, kw_only=True)
class ServeConfig(FrontendConfig, EngineConfig, LauncherConfig):
    """`pagewire serve`: frontends, engine cores and workers on this host, until Ctrl-C."""

    frontends: int = flag(1, "frontend processes; 0: none, see --listen", common=True, at_least=0, at_most=64)
    listen: str = flag(
        "",
        "address of the engine core for frontends of other containers or hosts (ipc:///folder/frontends.ipc,"
        " or tcp://HOST:PORT with --curve-key)",
        metavar="ADDRESS",
    )
    data_parallel_size: int = flag(
        1,
        "engine cores; streams survive the death of one",
        common=True,
        at_least=1,
        at_most=64,
    )
    prefill_engines: int = flag(
        0,
        "engine cores, of --data-parallel-size, that compute prompts and first tokens; the others decode;"
        " 0: each does both",
        at_least=0,
        at_most=63,
        metavar="N",
    )
    revision: str = flag(
        "",
        "branch, tag or commit of a model on the Hugging Face Hub; default: main",
        metavar="NAME",
    )
    api_key: tuple[str, ...] = flag(
        (),
        "key that calls must send as a bearer token (PAGEWIRE_API_KEY keeps it out of the list of processes);"
        " may be repeated; all keys belong to the tenant `default`; --auth-file has tenants and roles",
        metavar="KEY",
    )
    gateway: int | None = flag(
        None,
        "HTTP port of smg on 127.0.0.1, a gateway in front of all frontends (needs the extra `gateway`);"
        " 0: any; default: none",
        at_least=0,
        at_most=65535,
        metavar="PORT",
    )
    no_pinning: bool = flag(
        False,
        "let all processes use all CPU cores; default: reserve cores for workers, if there are enough",
    )
    no_restart: bool = flag(False, "end the service when one of its processes dies")
    no_standby: bool = flag(
        False,
        "keep no processes in reserve (--standbys 0): saves memory, and restarts take longer",
    )
    standbys: int = flag(
        2,
        "processes that have imported everything, and fork the next one when an engine core, a worker, or a "
        "frontend that is alone dies; for each of these",
        at_least=0,
        at_most=8,
    )
    max_deaths: int = flag(
        5, "deaths of one process within a minute after which the service ends", at_least=1
    )
    max_restart_pause: float = flag(
        10.0, "longest pause before a process is restarted", at_least=0, metavar="SECONDS"
    )

    DECIDED: ClassVar[frozenset[str]] = frozenset(
        {
            "engine",
            "external_workers",
            "http_socket",
            "listen_workers",
            "loopback_port",
            "metrics_model_name",
            "parent_starts_worker",
            "process_name",
            "reuse_port",
            "standby",
            "worker_cores",
        }
    )
    """Fields that the supervisor sets for its children: no flags of `pagewire serve`."""


@dataclass(frozen=True, kw_only=True)
class GatewayConfig(CommonConfig):
    """`pagewire gateway`: smg on the loopback address, in front of frontends with --vllm-engine."""

    port: int = flag(30000, "HTTP port of smg", common=True, at_least=1, at_most=65535)
    backend: tuple[str, ...] = flag(
        ("127.0.0.1:50051",),
        "HOST:PORT of a frontend; may be repeated",
        common=True,
        metavar="ADDRESS",
    )
    shutdown_grace: float = flag(1.0, "seconds for running requests to end after SIGTERM", at_least=0)
    hang_timeout: float = flag(
        10.0,
        "seconds without an answer after which smg counts as hung and is killed; 0: never",
        at_least=0,
        metavar="SECONDS",
    )


@dataclass(frozen=True, kw_only=True)
class KeysConfig:
    """`pagewire keys`: makes the keys for tcp:// between processes: one file for engine cores, and one for
    frontends and workers."""

    folder: str = flag("", "folder to write them to", common=True, positional=True, metavar="FOLDER")
