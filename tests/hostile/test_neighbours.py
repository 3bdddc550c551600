"""Each attack of the table does something, ends when it is told to, and leaves a frontend that serves."""

import asyncio
import threading

import pytest

from benchmarks.faults import neighbours
from frontend.auth.tokens import digest_of, entry_line
from pagewire.v1 import model_pb2
from tests.frontend.auth.test_authenticator import bearer
from tests.frontend.fakes import run_service, say


@pytest.mark.parametrize("attack", neighbours.ATTACKS)
async def test_an_attack(checkpoint, model, tmp_path, attack: str):
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + "".join(entry_line(digest_of(f"{t}'s"), t, {}) for t in ("alice", "bob")))
    async with run_service(checkpoint, say([65]), model=model, auth_file=str(tokens)) as service:
        stop, counters = threading.Event(), service.frontend.counters
        before = sum(counters.started.values()) + counters.abandoned
        arguments = (f"127.0.0.1:{service.port}", "alice's", stop)
        thread = threading.Thread(target=neighbours.ATTACKS[attack], args=arguments, name="attack 0")
        thread.start()
        try:
            for _ in range(1000):
                calls = sum(counters.started.values()) + counters.abandoned
                if calls + service.frontend.limits.num_calls > before:
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError("no call of it has arrived")
            listed = await service.models.ListModels(model_pb2.ListModelsRequest(), metadata=bearer("bob's"))
            assert listed.models
        finally:
            stop.set()
            await asyncio.to_thread(thread.join)


def test_the_table(capsys: pytest.CaptureFixture[str]):
    neighbours.show(
        [
            neighbours.Figures("none", 1000.0, 10.0, 0.2, 500.0, 100.0, 50.0),
            neighbours.Figures("mild", 500.0, 20.0, 1.0, 500.0, 120.0, 50.0),
            neighbours.Figures("slow", 900.0, 31.0, 0.2, 500.0, 120.0, 50.0),
            neighbours.Figures("starved", 100.0, 20.0, 0.2, 60.0, 120.0, 50.0),
        ]
    )
    printed = capsys.readouterr().out
    assert "| mild | 500 | 0.50 | 1.00 | 20 | 2.0 | 1.00 | 120, 50 |" in printed
    assert printed.splitlines()[-1].endswith(": slow, starved")
