"""The processes that `pagewire serve` is made of: their names, and what each of them is told."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pagewire import flags
from pagewire.config import EngineConfig, FrontendConfig, ServeConfig
from pagewire.host.cores import CorePlan, format_cores
from pagewire.ipc.transport import frontends_address, workers_address
from pagewire.supervisor.restart_slot import Post, label
from pagewire.telemetry.tree import SUFFIX
from pagewire.telemetry.watch import NO_PORT


def engine_posts(config: ServeConfig, folder: Path, plan: CorePlan | None = None) -> list[Post]:
    """The engine cores, by rank; each starts its worker itself. folder: for their sockets. plan: where
    the workers run; None: anywhere."""
    posts = []
    for rank, name in enumerate(_names("engine core", config.data_parallel_size)):
        engine = replace(
            config, listen=frontends_address(folder, rank), listen_workers=workers_address(folder, rank)
        )
        if plan is not None:
            engine = replace(engine, worker_cores=format_cores(plan.workers[rank]))
        if config.record and config.data_parallel_size > 1:
            engine = replace(engine, record=f"{config.record}.{rank}")
        engine = _watched(engine, name, folder)
        posts.append(_post(config, name, ["engine", *flags.to_arguments(engine, EngineConfig)]))
    return posts


def frontend_posts(config: ServeConfig, folder: Path, port: int) -> list[Post]:
    """The frontends. port: ours already, a frontend can only share it."""
    engines = tuple(frontends_address(folder, rank) for rank in range(config.data_parallel_size))
    frontend = replace(config, port=port, engine=engines, reuse_port=True)
    posts = []
    for name in _names("frontend", config.frontends):
        arguments = flags.to_arguments(_watched(frontend, name, folder), FrontendConfig)
        posts.append(_post(config, name, ["frontend", *arguments]))
    return posts


def _names(kind: str, count: int) -> Iterator[str]:
    """Numbered from 1, where there are several."""
    return (f"{kind} {number}" if count > 1 else kind for number in range(1, count + 1))


def _watched(config: ServeConfig, name: str, folder: Path) -> ServeConfig:
    """For a child of that name: it is seen through the supervisor's HTTP port."""
    socket = folder / (label(name) + SUFFIX)
    return replace(config, process_name=label(name), http_port=NO_PORT, http_socket=str(socket))


def _post(config: ServeConfig, name: str, arguments: list[str]) -> Post:
    max_deaths = 1 if config.no_restart else config.max_deaths
    return Post(name, arguments, max_deaths, config.max_restart_pause)
