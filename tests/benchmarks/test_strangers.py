"""What a tenant keeps beside strangers is counted, with the reasons of errors."""

import asyncio
import threading

import pytest

from benchmarks.faults import strangers
from frontend.auth.tokens import digest_of, entry_line
from tests.frontend.conftest import checkpoint, model
from tests.frontend.fakes import run_service, until
from tests.hostile.test_frames import framed

__all__ = ["checkpoint", "model"]
METHOD = "pagewire.v1.ModelService/ListModels"


@pytest.mark.parametrize("flood", strangers.FLOODS)
async def test_calls_and_errors_are_counted(checkpoint, model, tmp_path, flood: str):
    """The flood reaches the service. It has ended when the tenant calls: beside it any call may fail."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + entry_line(digest_of("alice's"), "alice", {}))
    async with run_service(checkpoint, model=model, auth_file=str(tokens)) as service:
        address, stop = f"127.0.0.1:{service.port}", threading.Event()
        arguments = (address, f"/{METHOD}", framed(b""), stop)
        thread = threading.Thread(target=strangers.FLOODS[flood], args=arguments)
        thread.start()
        try:
            counters = service.frontend.counters
            await until(lambda: sum(counters.started.values()) + counters.abandoned > 0)
        finally:
            stop.set()
            await asyncio.to_thread(thread.join)
        kept = await strangers.tenant(address, "alice's", METHOD, 0.01)
        wrong = await strangers.tenant(address, "bob's", METHOD, 0.01)
        assert kept.answered >= strangers.CALLS and not kept.errors and kept.rate > 0
        assert not wrong.answered and not any(error.startswith(strangers.BARE) for error in wrong.errors)
        assert sum(wrong.errors.values()) >= strangers.CALLS
