"""However a service ends, it leaves no process, socket or file."""

import os
import signal
from collections.abc import Callable

import pytest

from pagewire import Client
from tests.e2e import services
from tests.e2e.services import Serve

Start = Callable[..., Serve]
SIMULATED = "--device=simulated", "--profile=instant"
"""Where it is not the worker's own end that counts."""


def descendants(serve: Serve) -> dict[str, list[int]]:
    found = services.settled(serve.process.pid)
    assert set(found) == {"engine", "frontend", "reader", "worker"}
    return found


def all_pids(found: dict[str, list[int]]) -> list[int]:
    return [pid for pids in found.values() for pid in pids]


def test_ctrl_c_ends_everything_and_leaves_nothing(serve: Start):
    """While a stream runs, too."""
    service = serve()
    facts = service.wait_ready()
    assert facts["model"] == "demo" and int(facts["max_model_len"]) > 0
    assert len(list(service.runtime.iterdir())) == 1
    with Client(facts["address"]) as client:
        stream = client.stream("a", max_tokens=900, ignore_eos=True)
        next(stream)
        with services.all_die(all_pids(descendants(service))):
            service.process.send_signal(signal.SIGINT)
            code, error = service.end()
        stream.close()
    assert code == 0, error
    assert "Traceback" not in error
    assert list(service.runtime.iterdir()) == []


def test_a_supervisor_that_is_killed_takes_everything_along(serve: Start):
    service = serve(*SIMULATED)
    service.wait_ready()
    with services.all_die(all_pids(descendants(service))):
        service.process.kill()
    service.end()
    (stale,) = service.runtime.iterdir()
    again = serve(*SIMULATED)
    again.wait_ready()
    assert not stale.exists()  # the next start sweeps up


def test_ctrl_c_while_it_loads(serve: Start):
    service = serve("--log-level=error")
    service.wait_loading()
    pids = all_pids(services.processes(service.process.pid))
    with services.all_die(pids):
        service.process.send_signal(signal.SIGINT)
        code, error = service.end()
    assert (code, error) == (0, "") or "Traceback" not in error and code == 0
    assert list(service.runtime.iterdir()) == []


@pytest.mark.parametrize(
    ("victim", "word"), [("worker", "worker"), ("engine", "engine core"), ("frontend", "frontend")]
)
def test_a_child_that_is_killed_ends_the_service_with_its_name(serve: Start, victim: str, word: str):
    """With --no-restart."""
    service = serve("--no-restart", *SIMULATED)
    service.wait_ready()
    found = descendants(service)
    with services.all_die(all_pids(found)):
        os.kill(found[victim][0], signal.SIGKILL)
        code, error = service.end()
    assert code == 1
    assert "Traceback" not in error
    assert any(word in line for line in error.splitlines()[-3:]), error
    assert list(service.runtime.iterdir()) == []


@pytest.mark.parametrize("victim", ["worker", "engine", "frontend"])
def test_a_child_that_is_killed_comes_back_at_the_same_address(serve: Start, victim: str):
    """An engine core dies with its worker, and both are replaced; a worker is adopted by the next core."""
    service = serve("--http-port=0", *(SIMULATED if victim != "worker" else ()))
    facts = service.wait_ready()
    found = descendants(service)
    dying = found["engine"] + found["worker"] if victim == "worker" else found[victim]
    with Client(facts["address"]) as client:
        before = client.generate("The capital of France is", temperature=0, max_tokens=20)
        with services.all_die(dying):
            os.kill(found[victim][0], signal.SIGKILL)
        services.wait_until(lambda: not set(dying) & set(all_pids(services.processes(service.process.pid))))
        client.wait_ready()
        assert client.generate("The capital of France is", temperature=0, max_tokens=20).text == before.text
    services.wait_until(lambda: any(services.metric(facts, "pagewire_supervisor_last_pause_seconds")))
    with services.all_die(all_pids(descendants(service))):
        service.process.send_signal(signal.SIGINT)
        code, error = service.end()
    assert code == 0, error
    assert "Traceback" not in error
    assert sum("starts again" in line for line in error.splitlines()) == 1, error
    assert sum("is back after" in line for line in error.splitlines()) == 1, error
    assert list(service.runtime.iterdir()) == []


def test_a_supervisor_that_is_killed_while_a_child_starts_again(serve: Start):
    service = serve(*SIMULATED)
    service.wait_ready()
    first = descendants(service)
    os.kill(first["engine"][0], signal.SIGKILL)
    services.wait_until(
        lambda: services.processes(service.process.pid).get("engine", first["engine"]) != first["engine"]
    )
    with services.all_die(all_pids(services.processes(service.process.pid))):
        service.process.kill()
    service.end()
