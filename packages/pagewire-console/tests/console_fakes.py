"""A frontend with the console, and data that its page is to show."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from frontend.auth.caller import Caller
from frontend.engine.adapters import AdapterCatalogue
from frontend.inspector import Inspector
from pagewire.internal.v1.engine_pb2 import NamedAdapter
from pagewire.v1 import inspection_pb2 as pb
from tests.frontend.fakes import Script, Service, encode, run_service, say
from tests.patience import PATIENCE_S

RunConsole = Callable[..., AbstractAsyncContextManager[tuple[Service, httpx2.AsyncClient]]]


@pytest.fixture
def run_console(checkpoint: Path) -> RunConsole:
    """Runs a frontend with the HTTP port; keyword arguments are flags. Yields it and a client."""

    @asynccontextmanager
    async def run(
        script: Script | None = None, **flags: Any
    ) -> AsyncIterator[tuple[Service, httpx2.AsyncClient]]:
        script = script or say(encode("he"), encode("llo"))
        async with run_service(checkpoint, script, openai_port=0, **flags) as service:
            url = service.frontend.facts["openai"].removesuffix("/v1")
            async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
                yield service, client

    return run


MARKUP = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"
"""What a page must show as it is."""


class Shown:
    """What an Inspector answers, in place of engine cores."""

    def __init__(self) -> None:
        self.requests = [request_info(number) for number in range(3)]
        self.callers: list[Caller] = []

    async def list_requests(self, _: Any, request: Any, caller: Caller) -> pb.ListRequestsResponse:
        self.callers.append(caller)
        return pb.ListRequestsResponse(requests=self.requests[: request.page_size], total=len(self.requests))

    async def explain_request(self, _: Any, request: Any, caller: Caller) -> pb.ExplainRequestResponse:
        found = next(each for each in self.requests if each.request_id == request.request_id)
        response = pb.ExplainRequestResponse(request=found, num_sharers=2)
        response.request.timings.queue.FromMilliseconds(250)
        response.request.timings.waits.rows.FromMilliseconds(200)
        response.sharers.add(request_id=MARKUP, blocks=3)
        response.sequences.add(phase=pb.REQUEST_PHASE_DECODE, tokens=20, computed_tokens=19, blocks=2)
        response.position.sequences_ahead = 4
        return response

    async def kv_pool(self, _: Any, request: Any, caller: Caller) -> pb.GetKvPoolResponse:
        pool = pb.KvPool(
            block_size=16,
            num_blocks=64,
            held_blocks=24,
            shared_blocks=8,
            free_cached_blocks=16,
            blocks_per_cell=1,
            cell_held=[int(place < 24) for place in range(64)],
            cell_shared=[int(place < 8) for place in range(64)],
            cell_free_cached=[int(24 <= place < 40) for place in range(64)],
            cell_holder=[int(place < 24) for place in range(64)],
        )
        pool.holders.add(request_id="request-0", tenant="alice", blocks=24)
        return pb.GetKvPoolResponse(pools=[pool])

    async def list_tenants(self, _: Any, request: Any, caller: Caller) -> pb.ListTenantsResponse:
        shares = {"alice": 0.75, MARKUP: 0.25}
        rows = [pb.TenantInfo(tenant=name, requests=2, share=share) for name, share in shares.items()]
        return pb.ListTenantsResponse(tenants=rows, total=2)

    async def listed(self, _: Any) -> list[NamedAdapter]:
        idle = [NamedAdapter(name=f"idle-{number}", digest=bytes(32)) for number in range(300)]
        return [*idle, NamedAdapter(name=MARKUP, digest=bytes(32), requests=3, loaded=True, bytes=3 << 20)]

    def list_engines(self, _: Any) -> pb.ListEnginesResponse:
        engine = pb.EngineInfo(state=pb.ENGINE_STATE_SERVING, version="1", device="cpu", differs="")
        events = [pb.EngineEvent(kind=pb.ENGINE_EVENT_KIND_LOST, requests=3)]
        events.append(pb.EngineEvent(kind=pb.ENGINE_EVENT_KIND_RESUMED, requests=2))
        return pb.ListEnginesResponse(engines=[engine], events=events)


def request_info(number: int) -> pb.RequestInfo:
    """A request whose row can be told from others."""
    waits = number % 3 == 2
    info = pb.RequestInfo(
        request_id=f"request-{number}",
        tenant=("alice", "bob")[number % 2],
        phase=pb.REQUEST_PHASE_QUEUED if waits else pb.REQUEST_PHASE_DECODE,
        waits_for=pb.WAIT_CAUSE_ROWS if waits else pb.WAIT_CAUSE_UNSPECIFIED,
        prompt_tokens=100 + number,
        output_tokens=number,
        blocks=7,
        rank=0,
    )
    info.age.FromMilliseconds(1000 * number)
    return info


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Replaces what cores answer about requests, blocks, tenants, adapters and engines."""
    shown = Shown()
    for name in ("list_requests", "explain_request", "kv_pool", "list_tenants", "list_engines"):
        answer = getattr(shown, name)
        monkeypatch.setattr(Inspector, name, bound(answer))
    monkeypatch.setattr(AdapterCatalogue, "listed", bound(shown.listed))
    return shown


def bound(answer: Callable[..., Any]) -> Callable[..., Any]:
    """A method that hands its object on."""
    return lambda self, *arguments: answer(self, *arguments)
