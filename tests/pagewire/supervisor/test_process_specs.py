"""The processes of a service and their flags."""

from pathlib import Path

from pagewire import flags
from pagewire.config import EngineConfig, FrontendConfig, ServeConfig
from pagewire.supervisor.process_specs import engine_slots, frontend_slots

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
    frontends = frontend_slots(config, FOLDER, 5000)
    assert [slot.name for slot in frontends] == ["frontend 1", "frontend 2"]
    for slot in frontends:
        frontend = flags.parse(FrontendConfig, slot.arguments[1:], command="frontend", environment={})
        assert frontend.engine == tuple(engine.listen for engine in engines)
        assert frontend.port == 5000 and frontend.reuse_port
