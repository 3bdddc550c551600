"""The processes of `pagewire serve`: their names, command lines and CPU cores."""

import logging
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pagewire import flags
from pagewire.checkpoints.paths import checkpoint_path
from pagewire.config import NO_PORT, EngineConfig, FrontendConfig, GatewayConfig, RanksConfig, ServeConfig
from pagewire.errors import StartupError
from pagewire.host.addresses import reserve_port
from pagewire.host.resources import (
    GPU,
    SMALL_MODEL_BYTES,
    CorePlan,
    affinity,
    available_cores,
    format_cores,
    pin,
    plan_cores,
)
from pagewire.host.standby import FLAG
from pagewire.ipc.curve import CLIENT_FILE
from pagewire.ipc.transport import frontends_address, workers_address
from pagewire.supervisor.restart_slot import RestartSlot, label
from pagewire.telemetry.pages import SUFFIX

LOOPBACK = "127.0.0.1"
"""Of the gateway: smg has no accounts of ours and checks no Host, so only this machine reaches it."""


@dataclass(frozen=True)
class Ports:
    """The TCP ports of a service."""

    grpc: int
    openai: int | None = None
    gateway: int | None = None
    loopback: tuple[int, ...] = ()
    """Of each frontend, for the gateway: a connection to the port that they share reaches one of them."""


def reserve_ports(config: ServeConfig, stack: ExitStack) -> Ports:
    """Returns the ports, held until the stack closes, so that no other process takes one while a frontend is
    down. The gateway's is only looked for: smg shares its port with no other socket. Raises StartupError."""

    def reserve(host: str, port: int, flag: str) -> int:
        return int(stack.enter_context(reserve_port(host, port, flag)).getsockname()[1])

    if not config.frontends:
        return Ports(0)
    grpc = reserve(config.host, config.port, "--port")
    openai = config.openai_port
    if openai is not None:
        openai = reserve(config.openai_host, openai, "--openai-port")
    if config.gateway is None:
        return Ports(grpc, openai)
    with reserve_port(LOOPBACK, config.gateway, "--gateway") as found:
        gateway = int(found.getsockname()[1])
        loopback = tuple(reserve(LOOPBACK, 0, "--gateway") for _ in range(config.frontends))
    return Ports(grpc, openai, gateway, loopback)


def engine_slots(config: ServeConfig, folder: Path, plan: CorePlan | None = None) -> list[RestartSlot]:
    """Returns the engine cores by rank. The supervisor starts their workers; with --no-restart each core
    starts its own. folder: holds their sockets. plan: CPU cores of the workers; None: all."""
    slots = []
    addresses = engine_addresses(config, folder)
    for rank, name in enumerate(_names("engine core", config.data_parallel_size)):
        engine = replace(config, listen=addresses[rank], listen_workers=workers_address(folder, rank))
        if config.prefill_engines:
            engine = replace(engine, role="prefill" if rank < config.prefill_engines else "decode")
        if plan is not None:
            engine = replace(engine, worker_cores=format_cores(plan.workers[rank]))
        if config.record and config.data_parallel_size > 1:
            engine = replace(engine, record=f"{config.record}.{rank}")
        engine = replace(
            _watched(engine, name, folder),
            parent_starts_worker=not config.no_restart,
            metrics_model_name=next(iter(config.served_model_name), ""),
        )
        arguments = ["engine", *flags.to_arguments(engine, EngineConfig)]
        flag = f"{FLAG}={config.cpu_kernels}" if config.device != "simulated" else ""
        slots.append(_slot(config, name, arguments, num_standbys=_standbys(config), worker_standby=flag))
    return slots


def with_cache_key(config: ServeConfig, folder: Path) -> ServeConfig:
    """Returns the flags with a --prefix-cache-key where engine cores that copy blocks of one another have
    none: it gives these equal names. folder: of the service, for the key. Raises OSError."""
    has_several = config.data_parallel_size > 1 and not config.no_prefix_cache
    copies = config.drain_timeout or config.share_prefixes or config.prefill_engines
    if config.prefix_cache_key or not (has_several and copies):
        return config
    key = folder / "prefix-cache.key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32))
    return replace(config, prefix_cache_key=str(key))


def engine_addresses(config: ServeConfig, folder: Path) -> tuple[str, ...]:
    """Returns the address of each engine core for frontends: --listen, or sockets in the folder."""
    if config.listen:
        return (config.listen,)
    return tuple(frontends_address(folder, rank) for rank in range(config.data_parallel_size))


def frontend_slots(config: ServeConfig, folder: Path, ports: Ports) -> list[RestartSlot]:
    """Returns the frontends, which share all ports but those on the loopback address. One that is alone has
    standbys; of several the others serve until it is back."""
    engines = engine_addresses(config, folder)
    frontend = replace(config, port=ports.grpc, openai_port=ports.openai, engine=engines, reuse_port=True)
    frontend = replace(frontend, curve_key="")  # it is for ranks of other hosts
    slots = []
    for number, name in enumerate(_names("frontend", config.frontends)):
        own = _watched(frontend, name, folder)
        if ports.loopback:
            own = replace(own, loopback_port=ports.loopback[number], vllm_engine=True)
        arguments = flags.to_arguments(own, FrontendConfig)
        num_standbys = _standbys(config) if config.frontends == 1 else 0
        slots.append(_slot(config, name, ["frontend", *arguments], num_standbys=num_standbys))
    return slots


def gateway_slots(config: ServeConfig, ports: Ports) -> list[RestartSlot]:
    """Returns the gateway, if there is one."""
    if ports.gateway is None:
        return []
    gateway = GatewayConfig(
        log_level=config.log_level,
        log_format=config.log_format,
        process_name="gateway",
        port=ports.gateway,
        backend=tuple(f"{LOOPBACK}:{port}" for port in ports.loopback),
        shutdown_grace=config.shutdown_grace,
        hang_timeout=config.hang_timeout and max(config.hang_timeout, GatewayConfig.hang_timeout),
    )
    return [_slot(config, "gateway", ["gateway", *flags.to_arguments(gateway, GatewayConfig)])]


def launcher_slots(config: ServeConfig) -> list[RestartSlot]:
    """Returns what starts ranks on other hosts, unless users do. The keys for it are beside those of the
    engine core (pagewire.launchers.launcher.prepared)."""
    if config.launcher == "none":
        return []
    key = Path(config.curve_key).with_name(CLIENT_FILE)
    ranks = replace(config, curve_key=str(key), process_name="launcher")
    return [_slot(config, "launcher", ["ranks", *flags.to_arguments(ranks, RanksConfig)])]


def _names(kind: str, count: int) -> Iterator[str]:
    """Numbers the names from 1 if there are several."""
    return (f"{kind} {number}" if count > 1 else kind for number in range(1, count + 1))


def _watched(config: ServeConfig, name: str, folder: Path) -> ServeConfig:
    """Names the child, and lets it serve its HTTP pages to the supervisor only."""
    socket = folder / (label(name) + SUFFIX)
    return replace(config, process_name=label(name), http_port=NO_PORT, http_socket=str(socket))


def _standbys(config: ServeConfig) -> int:
    """Returns the standbys of each engine core, of each worker, and of a frontend that is alone."""
    return 0 if config.no_standby or config.no_restart else config.standbys


def _slot(config: ServeConfig, name: str, arguments: list[str], **standbys: Any) -> RestartSlot:
    max_deaths = 1 if config.no_restart else config.max_deaths
    return RestartSlot(name, arguments, max_deaths, config.max_restart_pause, **standbys)


log = logging.getLogger(__name__)


def share_cores(config: ServeConfig) -> CorePlan | None:
    """Decides on an assignment, logs it in one line and pins this process, whose children inherit that.
    Returns None when all processes may use all cores."""
    cores, threads = affinity(), config.threads * config.ranks_per_node
    plan = plan_cores(cores, config.data_parallel_size, config.frontends + config.data_parallel_size, threads)
    why = _why_not(config, len(cores)) or ("" if plan else "they are too few to be divided")
    failure = pin(plan.others) if plan and not why else None
    if failure is not None:
        why = f"they cannot be pinned: {failure}"
    log.info("cores: %s", f"{available_cores()} for all processes: {why}" if why else plan)
    return None if why else plan


def _why_not(config: ServeConfig, cores: int) -> str:
    """Returns why the processes should share all cores, or an empty string."""
    if config.no_pinning:
        return "--no-pinning"
    if config.device not in ("auto", "cpu") or (config.device == "auto" and GPU.exists()):
        return "the worker does not compute on them"
    if available_cores() < cores:
        # Other containers have a part of these cores too, and would pin themselves to the same ones.
        return f"a control group grants the time of that many, of {cores}"
    if config.load_format != "dummy" and _weight_bytes(config.model) < SMALL_MODEL_BYTES:
        return "the model is small, and its worker has one thread"
    return ""


def _weight_bytes(model: str) -> int:
    """Returns the size of the checkpoint's weights; 0 for no checkpoint, which the engine core refuses."""
    try:
        path = checkpoint_path(model)
        files = [path] if path.is_file() else path.glob("*.safetensors")
        return sum(file.stat().st_size for file in files)
    except (StartupError, OSError):
        return 0
