"""The processes of a service and their flags."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_core.kv_cache.hash_key import read_key
from pagewire import flags
from pagewire.config import EngineConfig, FrontendConfig, GatewayConfig, RanksConfig, ServeConfig
from pagewire.errors import StartupError
from pagewire.host.addresses import reserve_port
from pagewire.host.resources import CorePlan
from pagewire.supervisor.process_specs import (
    Ports,
    engine_slots,
    frontend_slots,
    gateway_slots,
    launcher_slots,
    reserve_ports,
    with_cache_key,
)
from pagewire.supervisor.restart_slot import RestartSlot

FOLDER = Path("/run/x")


def test_one_engine_core():
    (slot,) = engine_slots(ServeConfig(record="r"), FOLDER)
    assert slot.name == "engine core"
    engine = flags.parse(EngineConfig, slot.arguments[1:], command="engine", environment={})
    assert (engine.listen, engine.listen_workers, engine.record) == (
        "ipc:///run/x/frontends.ipc",
        "ipc:///run/x/workers.ipc",
        "r",
    )


def test_several_of_each():
    """No two cores share a socket or a file; every frontend knows all cores, in the order of their ranks."""
    config = ServeConfig(data_parallel_size=3, frontends=2, record="r", max_num_seqs=7)
    slots = engine_slots(config, FOLDER)
    assert [slot.name for slot in slots] == ["engine core 1", "engine core 2", "engine core 3"]
    engines = [
        flags.parse(EngineConfig, slot.arguments[1:], command="engine", environment={}) for slot in slots
    ]
    listening = [address for engine in engines for address in (engine.listen, engine.listen_workers)]
    assert len(set(listening)) == 6
    assert [engine.record for engine in engines] == ["r.0", "r.1", "r.2"]
    assert all(engine.max_num_seqs == 7 and engine.data_parallel_size == 3 for engine in engines)
    frontends = frontend_slots(config, FOLDER, Ports(5000))
    assert [slot.name for slot in frontends] == ["frontend 1", "frontend 2"]
    for slot in frontends:
        frontend = flags.parse(FrontendConfig, slot.arguments[1:], command="frontend", environment={})
        assert frontend.engine == tuple(engine.listen for engine in engines)
        assert frontend.port == 5000 and frontend.reuse_port
        assert frontend.loopback_port is None and not frontend.vllm_engine


def test_engine_cores_alone_listen_for_frontends_elsewhere():
    config = ServeConfig(frontends=0, listen="ipc:///run/shared/frontends.ipc")
    (slot,) = engine_slots(config, FOLDER)
    engine = flags.parse(EngineConfig, slot.arguments[1:], command="engine", environment={})
    assert (engine.listen, engine.listen_workers) == (config.listen, "ipc:///run/x/workers.ipc")
    assert engine.parent_starts_worker and slot.standbys
    with ExitStack() as stack:
        assert reserve_ports(config, stack) == Ports(0)
    assert frontend_slots(config, FOLDER, Ports(0)) == []


def test_frontends_of_the_service_find_a_core_that_others_share():
    config = ServeConfig(listen="ipc:///run/shared/frontends.ipc")
    (slot,) = frontend_slots(config, FOLDER, Ports(5000))
    frontend = flags.parse(FrontendConfig, slot.arguments[1:], command="frontend", environment={})
    assert frontend.engine == (config.listen,)


def test_keys_of_ranks_elsewhere_are_for_the_core_alone():
    config = ServeConfig(curve_key="engine.key", nnodes=2, tensor_parallel_size=2)
    ((engine,), (frontend,)) = engine_slots(config, FOLDER), frontend_slots(config, FOLDER, Ports(5000))
    assert "--curve-key=engine.key" in engine.arguments
    assert not [each for each in frontend.arguments if each.startswith("--curve-key")]


def test_the_gateway_reaches_each_frontend_at_a_port_of_its_own():
    config = ServeConfig(port=0, frontends=2, gateway=0, shutdown_grace=2.5)
    with ExitStack() as stack:
        ports = reserve_ports(config, stack)
    assert len({ports.grpc, ports.gateway, *ports.loopback}) == 4 and ports.openai is None
    frontends = [
        flags.parse(FrontendConfig, slot.arguments[1:], command="frontend", environment={})
        for slot in frontend_slots(config, FOLDER, ports)
    ]
    assert [frontend.loopback_port for frontend in frontends] == list(ports.loopback)
    assert all(frontend.vllm_engine for frontend in frontends)
    (slot,) = gateway_slots(config, ports)
    gateway = flags.parse(GatewayConfig, slot.arguments[1:], command="gateway", environment={})
    assert gateway.backend == tuple(f"127.0.0.1:{port}" for port in ports.loopback)
    assert (gateway.port, gateway.shutdown_grace) == (ports.gateway, 2.5)
    assert gateway_slots(ServeConfig(), Ports(1)) == []


def test_the_launcher_is_a_process_with_the_keys_of_ranks():
    """Which are beside those of the engine core. Without one there is none."""
    config = ServeConfig(
        launcher="ray", nnodes=2, tensor_parallel_size=4, threads=3, curve_key="/run/k/engine.key"
    )
    (slot,) = launcher_slots(config)
    ranks = flags.parse(RanksConfig, slot.arguments[1:], command="ranks", environment={})
    assert (slot.name, slot.arguments[0]) == ("launcher", "ranks")
    assert ranks.curve_key == "/run/k/client.key" and ranks.process_name == "launcher"
    assert (ranks.launcher, ranks.nnodes, ranks.threads, ranks.node_rank) == ("ray", 2, 3, 0)
    assert launcher_slots(ServeConfig(curve_key="k", nnodes=2)) == []


def test_commands_and_names():
    """Each process is named as its metrics are, and serves its pages to the supervisor alone."""
    config = ServeConfig(frontends=2, gateway=0)
    slots = [
        *engine_slots(config, FOLDER),
        *frontend_slots(config, FOLDER, Ports(5000)),
        *gateway_slots(config, Ports(5000, gateway=5001)),
    ]
    assert [slot.arguments[0] for slot in slots] == ["engine", "frontend", "frontend", "gateway"]
    names = ["engine-core", "frontend-1", "frontend-2", "gateway"]
    for slot, name in zip(slots, names, strict=True):
        assert f"--process-name={name}" in slot.arguments
        assert (f"--http-socket=/run/x/{name}.http" in slot.arguments) == (name != "gateway")
        assert ("--http-port=-1" in slot.arguments) == (name != "gateway")


def test_workers_have_their_cores():
    """By rank."""
    plan = CorePlan(workers=((1, 2), (5,)), others=(0,))
    slots = engine_slots(ServeConfig(data_parallel_size=2), FOLDER, plan)
    assert [core_flags(slot) for slot in slots] == [["--worker-cores=1-2"], ["--worker-cores=5"]]
    assert core_flags(engine_slots(ServeConfig(), FOLDER)[0]) == []


def test_two_engine_cores_record_into_two_files():
    slots = engine_slots(ServeConfig(data_parallel_size=2, record="r"), FOLDER)
    assert ["--record=r.0" in slots[0].arguments, "--record=r.1" in slots[1].arguments] == [True, True]


def core_flags(slot: RestartSlot) -> list[str]:
    return [flag for flag in slot.arguments if flag.startswith("--worker-cores")]


@pytest.mark.parametrize(
    ("settings", "standbys", "of_frontend", "outlives"),
    [
        ({}, [2, 2], [2], True),
        ({"device": "simulated"}, [2], [2], True),
        ({"standbys": 3}, [3, 3], [3], True),
        ({"standbys": 0}, [], [], True),
        ({"frontends": 2}, [2, 2], [], True),
        ({"no_standby": True}, [], [], True),
        ({"no_restart": True}, [], [], False),
    ],
)
def test_what_is_kept_for_a_restart(
    settings: dict[str, Any], standbys: list[int], of_frontend: list[int], outlives: bool
):
    """Standbys of cores and their workers, and of a frontend that is alone; and workers, which the supervisor
    then starts."""
    config = ServeConfig(**settings)
    (core,) = engine_slots(config, FOLDER)
    frontends = frontend_slots(config, FOLDER, Ports(5000))
    assert [each.count for each in core.standbys] == standbys
    assert [each.count for each in frontends[0].standbys] == of_frontend
    assert ("--parent-starts-worker" in core.arguments) == outlives


@pytest.mark.parametrize(("no_restart", "deaths"), [(False, 3), (True, 1)])
def test_after_how_many_deaths_a_service_ends(no_restart: bool, deaths: int):
    config = ServeConfig(max_deaths=3, no_restart=no_restart, gateway=0, max_restart_pause=7.0)
    ports = Ports(5000, gateway=5001)
    slots = [
        *engine_slots(config, FOLDER),
        *frontend_slots(config, FOLDER, ports),
        *gateway_slots(config, ports),
    ]
    assert [(slot._max_deaths, slot._longest_pause) for slot in slots] == [(deaths, 7.0)] * 3


@pytest.mark.parametrize(("given", "of_smg"), [(0.0, 0.0), (2.0, 10.0), (60.0, 60.0)])
def test_the_gateway_has_the_services_settings(given: float, of_smg: float):
    """smg is given 10 s to answer at least, or for ever."""
    config = ServeConfig(gateway=0, hang_timeout=given, log_level="debug", log_format="json")
    (slot,) = gateway_slots(config, Ports(5000, gateway=5001))
    gateway = flags.parse(GatewayConfig, slot.arguments[1:], command="gateway", environment={})
    assert (gateway.hang_timeout, gateway.log_level, gateway.log_format) == (of_smg, "debug", "json")
    assert slot.name == "gateway"


def test_the_port_of_openais_api_is_held_and_shared():
    """And a service without a gateway looks for no port of one."""
    with ExitStack() as stack:
        ports = reserve_ports(ServeConfig(port=0, openai_port=0), stack)
        assert ports.openai and ports.openai != ports.grpc
        assert (ports.gateway, ports.loopback) == (None, ())
        with pytest.raises(StartupError, match="in use"):
            reserve_port("127.0.0.1", ports.openai)
    (slot,) = frontend_slots(ServeConfig(), FOLDER, ports)
    assert f"--openai-port={ports.openai}" in slot.arguments


@pytest.mark.parametrize("flag", ["port", "openai_port", "gateway"])
def test_a_port_that_is_taken_is_an_error_that_names_the_flag(flag: str):
    with (
        reserve_port("127.0.0.1", 0) as taken,
        ExitStack() as stack,
        pytest.raises(StartupError) as refused,
    ):
        reserve_ports(ServeConfig(**{"port": 0, flag: taken.getsockname()[1]}), stack)
    assert f"choose another --{flag.replace('_', '-')} (" in refused.value.todo


def test_the_first_engine_cores_compute_prompts() -> None:
    config = ServeConfig(data_parallel_size=3, prefill_engines=1, prefix_cache_key="k")
    arguments = [slot.arguments for slot in engine_slots(config, FOLDER)]
    assert [[each for each in one if each.startswith("--role")] for one in arguments] == [
        ["--role=prefill"],
        ["--role=decode"],
        ["--role=decode"],
    ]


def test_engine_cores_that_copy_blocks_have_a_key(tmp_path: Path):
    several = ServeConfig(model="demo", data_parallel_size=2, drain_timeout=30.0)
    key = Path(with_cache_key(several, tmp_path).prefix_cache_key)
    assert key.parent == tmp_path and key.stat().st_mode & 0o777 == 0o600
    assert len(read_key(str(key))) == 32
    sharing = replace(several, drain_timeout=0.0, share_prefixes=True)
    apart = replace(several, drain_timeout=0.0, prefill_engines=1)
    for other in (sharing, apart):
        assert with_cache_key(other, tmp_path).prefix_cache_key == str(key)
    for config in (
        replace(several, data_parallel_size=1),
        replace(several, drain_timeout=0.0),
        replace(several, no_prefix_cache=True),
        replace(several, prefix_cache_key="own"),
    ):
        assert with_cache_key(config, tmp_path) == config
