"""The processes of a service and their flags."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from pagewire import flags
from pagewire.config import EngineConfig, FrontendConfig, GatewayConfig, ServeConfig
from pagewire.errors import StartupError
from pagewire.ipc.ports import reserve_port
from pagewire.supervisor.process_specs import (
    Ports,
    engine_slots,
    frontend_slots,
    gateway_slots,
    reserve_ports,
)

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


def test_a_gateways_port_that_is_taken_is_an_error_that_names_the_flag():
    with (
        reserve_port("127.0.0.1", 0) as taken,
        ExitStack() as stack,
        pytest.raises(StartupError) as refused,
    ):
        reserve_ports(ServeConfig(port=0, gateway=taken.getsockname()[1]), stack)
    assert "--gateway" in refused.value.todo
