"""Each attack does something, ends when it is told to, and leaves a frontend that serves."""

import asyncio
import threading

import pytest

from frontend.auth.tokens import digest_of, entry_line
from pagewire.v1 import model_pb2
from tests.frontend.auth.test_authenticator import bearer
from tests.frontend.fakes import run_service, say, until
from tests.hostile.attacks import ATTACKS


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack(checkpoint, model, tmp_path, attack: str):
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + "".join(entry_line(digest_of(f"{t}'s"), t, {}) for t in ("alice", "bob")))
    async with run_service(checkpoint, say([65]), model=model, auth_file=str(tokens)) as service:
        stop, counters = threading.Event(), service.frontend.counters

        def num_calls() -> int:
            return sum(counters.started.values()) + counters.abandoned + service.frontend.limits.num_calls

        before = num_calls()
        arguments = (f"127.0.0.1:{service.port}", "alice's", stop)
        thread = threading.Thread(target=ATTACKS[attack], args=arguments, name="attack 0")
        thread.start()
        try:
            await until(lambda: num_calls() > before)
            listed = await service.models.ListModels(model_pb2.ListModelsRequest(), metadata=bearer("bob's"))
            assert listed.models
        finally:
            stop.set()
            await asyncio.to_thread(thread.join)
