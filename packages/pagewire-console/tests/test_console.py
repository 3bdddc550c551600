"""The console's paths without a browser: what they answer, and to which callers."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from console_fakes import MARKUP, RunConsole, Shown
from frontend.auth.tokens import digest_of, entry_line
from pagewire_console import console, viewer
from pagewire_console.feed import MAX_ADAPTERS, Feed
from pagewire_console.history import COLUMNS, History
from pagewire_console.page_files import HOME
from tests.patience import PATIENCE_S

OPERATOR = {"authorization": "Bearer operator's"}
ALICE = {"authorization": "Bearer alice's"}


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    path = tmp_path / "tokens.yaml"
    alice = entry_line(digest_of("alice's"), "alice", {})
    path.write_text("tokens:\n" + alice + entry_line(digest_of("operator's"), "operators", {"role": "admin"}))
    return str(path)


async def events(client: httpx2.AsyncClient, **options: Any) -> AsyncIterator[dict[str, Any]]:
    """What a page follows."""
    async with client.stream("GET", f"{console.DATA}live", **options) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


async def until(client: httpx2.AsyncClient, *kinds: str, **options: Any) -> dict[str, dict[str, Any]]:
    """The first event of each kind."""
    found: dict[str, dict[str, Any]] = {}
    async with asyncio.timeout(PATIENCE_S):
        following = events(client, **options)
        async for each in following:
            found.setdefault(each["kind"], each)
            if set(found) >= set(kinds):
                break
        await following.aclose()
    return found


async def test_the_page_and_the_way_to_it(run_console: RunConsole):
    async with run_console() as (service, client):
        assert service.frontend.facts["console"] == f"{client.base_url}/console/"
        page = await client.get(HOME)
        assert page.status_code == 200 and "<title>pagewire" in page.text
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-frame-options"] == "DENY" and "set-cookie" not in page.headers
        script = await client.get(f"{HOME}main.js")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        for path in ("/", "/console"):
            moved = await client.get(path)
            assert (moved.status_code, moved.headers["location"]) == (308, HOME)
        for path in ("../console.py", "%2e%2e/console.py", "nothing.js", "data/nothing"):
            assert (await client.get(HOME + path)).status_code == 404
        assert (await client.post(HOME)).status_code == 405


async def test_what_a_page_follows(run_console: RunConsole, shown: Shown):
    async with run_console() as (_, client):
        about = (await client.get(f"{console.DATA}about")).json()
        assert about["model"] == "fake" and about["is_operator"] and about["sees_requests"]
        assert about["default_sampling"]["top_k"] == 40
        found = await until(client, "history", "now", "pool", "adapters")
        history, now, pool = found["history"], found["now"], found["pool"]
        adapters = found["adapters"]["adapters"]
        assert (len(adapters), found["adapters"]["total"]) == (MAX_ADAPTERS, 301)
        assert (adapters[0]["name"], adapters[0]["requests"], adapters[0]["loaded"]) == (MARKUP, 3, True)
        assert tuple(history["columns"]) == COLUMNS and history["length"] == 600
        assert now["state"] == "serving" and now["requests"]["total"] == 3
        rows = [dict(zip(now["requests"]["columns"], row, strict=True)) for row in now["requests"]["rows"]]
        assert [row["phase"] for row in rows] == ["decode", "decode", "queued"]
        assert rows[2]["cause"] == "rows" and rows[2]["age"] == 2.0
        assert [row["tenant"] for row in now["tenants"]] == ["alice", MARKUP]
        assert now["engines"][0]["state"] == "serving"
        assert [event["requests"] for event in now["log"]] == [3, 2]
        assert pool["pools"][0]["held"] == 24 and len(pool["pools"][0]["cells"][0]) == 64


async def test_a_request_is_explained(run_console: RunConsole, shown: Shown):
    async with run_console() as (_, client):
        path = f"{console.DATA}explain"
        found = (await client.get(path, params={"id": "request-2", "tenant": "alice"})).json()
        assert found["request"]["phase"] == "queued" and found["request"]["waits_for"] == "rows"
        assert found["request"]["timings"]["waits"]["rows"] == "0.200s"
        assert found["sequences"][0]["phase"] == "decode"
        refused = await client.get(path)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "id"


async def test_cores_are_asked_once_for_all_pages(
    run_console: RunConsole, shown: Shown, monkeypatch: pytest.MonkeyPatch
):
    """In an interval, which lasts here until the end."""
    monkeypatch.setattr("pagewire_console.history.INTERVAL_S", 3600.0)
    async with run_console() as (service, client):
        await asyncio.gather(*(until(client, "now") for _ in range(5)))
        assert len(shown.callers) == 1
        async with asyncio.timeout(PATIENCE_S):  # and pages that are gone hold nothing
            while len(service.frontend.write_timeouts):
                await asyncio.sleep(0.01)


async def test_without_an_engine_the_page_says_so(run_console: RunConsole):
    async with run_console(wait=False) as (_, client):
        found = await until(client, "now", "pool")
        assert found["now"]["state"] == "starting" and found["now"]["requests"]["rows"] == []
        assert found["pool"]["pools"] == []


async def test_tenants_see_their_own(run_console: RunConsole, shown: Shown, tokens: str):
    async with run_console(auth_file=tokens) as (_, client):
        assert (await client.get(HOME)).status_code == 200
        for name in ("about", "live", "explain?id=a"):
            refused = await client.get(console.DATA + name)
            assert refused.status_code == 401, name
        about = (await client.get(f"{console.DATA}about", headers=ALICE)).json()
        assert about["tenant"] == "alice" and not about["is_operator"] and about["sees_requests"]
        found = await until(client, "now", headers=ALICE)
        assert set(found["now"]) == {"kind", "state", "requests"} and found["history"]["rows"] == []
        assert shown.callers[-1].tenant == "alice" and not shown.callers[-1].is_admin
        about = (await client.get(f"{console.DATA}about", headers=OPERATOR)).json()
        assert about["is_operator"]
        assert "tenants" in (await until(client, "now", headers=OPERATOR))["now"]


async def test_a_token_that_is_revoked_ends_the_stream(run_console: RunConsole, shown: Shown, tokens: str):
    async with run_console(auth_file=tokens) as (_, client), asyncio.timeout(PATIENCE_S):
        following = events(client, headers=ALICE)
        await anext(following)
        Path(tokens).write_text("tokens: []\n")
        with pytest.raises(httpx2.TransportError):
            async for _ in following:
                pass


async def test_a_token_that_allows_something_else_begins_another_stream(
    run_console: RunConsole, shown: Shown, tokens: str
):
    async with run_console(auth_file=tokens) as (_, client), asyncio.timeout(PATIENCE_S):
        following = events(client, headers=OPERATOR)
        await anext(following)
        Path(tokens).write_text("tokens:\n" + entry_line(digest_of("operator's"), "operators", {}))
        async for _ in following:
            pass
        found = await until(client, "now", headers=OPERATOR)
        assert "tenants" not in found["now"]


async def test_samples_come_once_also_where_the_cores_answer_late(
    run_console: RunConsole, shown: Shown, monkeypatch: pytest.MonkeyPatch
):
    histories: list[History] = []

    def remembered(*parts: Any) -> History:
        histories.append(History(*parts))
        return histories[-1]

    async def late(*_: Any) -> list[Any]:
        histories[0].take()
        return []

    monkeypatch.setattr(console, "History", remembered)
    monkeypatch.setattr("pagewire_console.history.INTERVAL_S", 0.05)
    monkeypatch.setattr(Feed, "tenants", late)
    async with run_console() as (_, client), asyncio.timeout(PATIENCE_S):
        following = events(client)
        rows = len((await anext(following))["rows"])
        while rows < 6:
            rows += len((await anext(following)).get("samples", ()))
            assert rows <= histories[0].num_sampled
        await following.aclose()


async def test_elsewhere_than_on_loopback_it_is_off_unless_asked_for(run_console: RunConsole):
    async with run_console(openai_host="0.0.0.0") as (service, client):
        assert "console" not in service.frontend.facts
        local = str(client.base_url).replace("0.0.0.0", "127.0.0.1")
        assert (await client.get(f"{local}/console/")).status_code == 404
        assert (await client.get(f"{local}/console/data/about")).status_code == 404
    async with run_console(openai_host="0.0.0.0", console=True) as (service, client):
        assert "console" in service.frontend.facts
    async with run_console(console=False) as (service, client):
        assert "console" not in service.frontend.facts
        assert (await client.get(HOME)).status_code == 404


async def test_without_tokens_operators_are_on_this_machine(
    run_console: RunConsole, shown: Shown, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(viewer, "is_loopback", lambda address: False)
    async with run_console() as (_, client):
        about = (await client.get(f"{console.DATA}about")).json()
        assert not about["is_operator"] and not about["sees_requests"]
        refused = await client.get(f"{console.DATA}explain", params={"id": "request-0"})
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "admin_only"
        found = await until(client, "now")
        assert found["now"]["requests"]["rows"] == [] and not shown.callers


@pytest.mark.parametrize("name", ["forwarded", "x-forwarded-for", "x-real-ip", "via"])
async def test_a_proxy_on_this_machine_is_no_operator(run_console: RunConsole, shown: Shown, name: str):
    async with run_console() as (_, client):
        about = (await client.get(f"{console.DATA}about", headers={name: "for=192.0.2.1"})).json()
        assert not about["is_operator"] and not about["sees_requests"]


@pytest.mark.parametrize(
    ("headers", "page", "data"),
    [
        ({"host": "evil.example"}, 403, 403),
        ({"sec-fetch-site": "cross-site"}, 200, 403),  # others may link to the page
        ({"sec-fetch-site": "same-site"}, 200, 403),
        ({"sec-fetch-site": "same-origin"}, 200, 200),
        ({"sec-fetch-site": "none"}, 200, 200),
        ({"origin": "http://evil.example"}, 200, 403),
    ],
)
async def test_pages_from_elsewhere_see_nothing(
    run_console: RunConsole, headers: dict[str, str], page: int, data: int
):
    async with run_console() as (_, client):
        assert (await client.get(HOME, headers=headers)).status_code == page
        answer = await client.get(f"{console.DATA}about", headers=headers)
        assert answer.status_code == data
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_shutdown_ends_the_stream(run_console: RunConsole, shown: Shown):
    async with run_console() as (service, client), asyncio.timeout(PATIENCE_S):
        following = events(client)
        await anext(following)
        stopping = asyncio.create_task(service.frontend.stop(30))
        async for _ in following:
            pass
        await stopping
