"""The processes of `pagewire serve`: their names and command lines."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pagewire import flags
from pagewire.config import EngineConfig, FrontendConfig, ServeConfig
from pagewire.host.cores import CorePlan, format_cores
from pagewire.ipc.transport import frontends_address, workers_address
from pagewire.supervisor.restart_slot import RestartSlot, label
from pagewire.telemetry.tree import SUFFIX
from pagewire.telemetry.watch import NO_PORT


def engine_slots(config: ServeConfig, folder: Path, plan: CorePlan | None = None) -> list[RestartSlot]:
    """Returns the engine cores by rank; each starts its worker itself. folder: holds their sockets. plan:
    cores of the workers; None: all."""
    slots = []
    for rank, name in enumerate(_names("engine core", config.data_parallel_size)):
        engine = replace(
            config, listen=frontends_address(folder, rank), listen_workers=workers_address(folder, rank)
        )
        if plan is not None:
            engine = replace(engine, worker_cores=format_cores(plan.workers[rank]))
        if config.record and config.data_parallel_size > 1:
            engine = replace(engine, record=f"{config.record}.{rank}")
        engine = _watched(engine, name, folder)
        arguments = ["engine", *flags.to_arguments(engine, EngineConfig)]
        slots.append(
            _slot(config, name, arguments, keeps_standby=not (config.no_standby or config.no_restart))
        )
    return slots


def frontend_slots(
    config: ServeConfig, folder: Path, port: int, openai_port: int | None = None
) -> list[RestartSlot]:
    """Returns the frontends. port, openai_port: reserved by the supervisor; the frontends share them."""
    engines = tuple(frontends_address(folder, rank) for rank in range(config.data_parallel_size))
    frontend = replace(config, port=port, openai_port=openai_port, engine=engines, reuse_port=True)
    slots = []
    for name in _names("frontend", config.frontends):
        arguments = flags.to_arguments(_watched(frontend, name, folder), FrontendConfig)
        slots.append(_slot(config, name, ["frontend", *arguments]))
    return slots


def _names(kind: str, count: int) -> Iterator[str]:
    """Numbers the names from 1 if there are several."""
    return (f"{kind} {number}" if count > 1 else kind for number in range(1, count + 1))


def _watched(config: ServeConfig, name: str, folder: Path) -> ServeConfig:
    """Names the child, and lets it serve its HTTP pages to the supervisor only."""
    socket = folder / (label(name) + SUFFIX)
    return replace(config, process_name=label(name), http_port=NO_PORT, http_socket=str(socket))


def _slot(
    config: ServeConfig, name: str, arguments: list[str], *, keeps_standby: bool = False
) -> RestartSlot:
    max_deaths = 1 if config.no_restart else config.max_deaths
    return RestartSlot(name, arguments, max_deaths, config.max_restart_pause, keeps_standby=keeps_standby)
