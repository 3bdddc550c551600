"""Readings of a core: what Prometheus gets beside its counters."""

from pathlib import Path
from types import SimpleNamespace

from engine_core.metrics import READINGS, VLLM_READINGS, Parts
from pagewire.internal.v1.worker_pb2 import Ready
from pagewire.telemetry.figures import MOST_NAMES, OTHERS
from tests.engine_core.adapters.test_memory import Adapters
from tests.engine_core.fakes import add_item, add_request
from tests.engine_core.house import House


def parts_of(house: House) -> Parts:
    frontends = SimpleNamespace(num_bad_frames=3, backlog_bytes=lambda: [10, 30])
    workers = SimpleNamespace(num_bad_frames=1)
    ready = Ready(kv_cache_bytes=5000, num_threads=4)
    return Parts(house.core, frontends, workers, ready)  # type: ignore[arg-type]


def read(house: House) -> dict[str, object]:
    """Values by metric, without prefix."""
    parts = parts_of(house)
    readings = (*READINGS, *VLLM_READINGS)
    return {each.metric.name.removeprefix("pagewire_"): each.read(parts) for each in readings}


def test_readings_of_a_core_with_requests() -> None:
    house = House(blocks=64, rows=2)
    for handle in (1, 2, 3):
        house.put(add_request(handle, 9, max_tokens=5, ignore_eos=True))
    house.step(2)
    values = read(house)
    assert (values["core_requests_running"], values["core_requests_waiting"]) == (2, 1)
    assert values["core_rows"] == 2 and values["core_steps_total"] == 2
    assert values["core_waiting_tokens"] == 9
    pool = house.scheduler.pool
    assert values["core_kv_blocks"] == {"used": pool.num_blocks - pool.num_free, "free": pool.num_free}
    assert values["core_bad_frames_total"] == {"frontends": 3, "workers": 1}
    assert (values["core_backlog_bytes"], values["core_largest_backlog_bytes"]) == (40, 30)
    assert (values["worker_kv_cache_bytes"], values["worker_threads"]) == (5000, 4)
    house.inbox.close()


def test_readings_of_media() -> None:
    house = House(budget=12)
    for handle in (1, 2):
        message = add_request(handle, 20, max_tokens=5, ignore_eos=True)
        add_item(message, range(4, 14))
        house.put(message)
    house.step(2)
    values = read(house)
    assert (values["core_encoded_items_total"], values["core_encoded_vectors_total"]) == (1, 10)
    assert values["core_encoder_cache_hits_total"] == 1
    assert values["core_encoder_cache_vectors"] == {"used": 10, "free": 2}
    assert values["core_media_bytes"] == 96
    house.inbox.close()


def test_preemptions_are_split_by_what_became_of_the_blocks() -> None:
    house = House()
    house.scheduler.states.num_preemptions, house.scheduler.swap.num_swapped_out = 5, 2
    assert read(house)["core_preemptions_total"] == {"recompute": 3, "swap": 2}
    house.inbox.close()


def test_the_tenants_that_were_served_most_have_a_value_each() -> None:
    house = House(rows=8, blocks=512)
    for handle in range(MOST_NAMES + 5):
        house.put(add_request(handle, 3 + handle, max_tokens=1, tenant=f"tenant-{handle}"))
    house.run()
    service = read(house)["core_tenant_service"]
    assert isinstance(service, dict) and len(service) == MOST_NAMES + 1
    assert f"tenant-{MOST_NAMES + 4}" in service and "tenant-0" not in service
    total = sum(house.scheduler.waiting.tenants.counters().values())  # type: ignore[attr-defined]
    assert sum(service.values()) == total and service[OTHERS] > 0
    house.inbox.close()


def test_adapters_have_their_requests_loads_and_bytes(tmp_path: Path) -> None:
    house = Adapters(tmp_path, capacity=20, rows=2)
    for handle, name in enumerate(("a", "b", "c", "missing"), start=1):
        house.put_one(handle, name)
        house.run()
    for handle, name in enumerate("ccbb", start=10):
        house.put_one(handle, name, max_tokens=5)
    house.step(2)
    values = read(house)
    none = {(OTHERS, "running"): 0, (OTHERS, "waiting"): 0}
    requests = {**none, ("c", "running"): 2, ("b", "waiting"): 2}
    assert values["core_adapter_requests"] == requests
    ((_, running, waiting),) = labels = list(values["vllm:lora_requests_info"])  # type: ignore[call-overload]
    assert labels == [("2", "c", "b")] and (running, waiting) == ("c", "b")
    house.scheduler.planner.adapter_slots.num_slots = 1
    assert list(read(house)["vllm:lora_requests_info"]) == [("1", "c", "b")]  # type: ignore[call-overload]
    house.scheduler.planner.adapter_slots.num_slots = 0
    house.run()
    values = read(house)
    assert values["core_adapter_loads_total"] == {"loaded": 3, "failed": 1}
    assert (values["core_adapters_loaded"], values["core_adapter_evictions_total"]) == (2, 1)
    assert values["core_adapter_bytes"] == {"used": 20, "free": 0}
    assert values["core_adapter_requests"] == none and values["core_adapters_named"] == 0
    house.inbox.close()


def test_the_adapters_with_the_most_requests_have_a_value_each(tmp_path: Path) -> None:
    house = Adapters(tmp_path, capacity=1000, names=[f"a{number}" for number in range(MOST_NAMES + 5)])
    handle = 0
    for number in range(MOST_NAMES + 5):
        for _ in range(1 + (number >= 5)):
            handle += 1
            house.put_one(handle, f"a{number}")
    house.step()
    requests = read(house)["core_adapter_requests"]
    assert isinstance(requests, dict)
    assert {name for name, _ in requests} == {OTHERS, *(f"a{number}" for number in range(5, MOST_NAMES + 5))}
    assert sum(requests.values()) == handle
    assert sum(number for (name, _), number in requests.items() if name == OTHERS) == 5
    house.run()
    house.inbox.close()
