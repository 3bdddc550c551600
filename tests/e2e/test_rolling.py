"""Frontends are restarted one after another under load, and one is killed: no call fails."""

import asyncio
import contextlib
import json
import signal
import urllib.request
from collections.abc import Iterator

import grpc
import pytest

from pagewire import AsyncClient, Client
from pagewire_client.errors import PermissionDenied, Unavailable
from tests.e2e import rolling, services
from tests.e2e.topology import NGINX, Topology, topology

needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@pytest.fixture(scope="module")
def service() -> Iterator[Topology]:
    with topology(**rolling.FLAGS, engine=rolling.ENGINE) as service:
        yield service


@pytest.fixture(scope="module")
def balanced(service: Topology) -> Topology:
    """The same, with nginx before it."""
    service.start_balancer()
    return service


def check(tally: rolling.Tally, restarts: int) -> None:
    print(tally)
    assert not tally.failures, tally
    assert tally.exit_codes == {0: restarts}
    assert tally.calls["plain"] > restarts * rolling.NUM_PLAIN


def test_a_rolling_restart_behind_round_robin(service: Topology):
    tally = asyncio.run(rolling.round_robin(service, 2))
    check(tally, 2)
    assert tally.continued, "no stream was longer than the grace"


@needs_nginx
def test_a_rolling_restart_behind_nginx(balanced: Topology):
    check(asyncio.run(rolling.behind_nginx(balanced, 2)), 2)


@needs_nginx
def test_a_frontend_that_is_killed_behind_nginx(balanced: Topology):
    """Streams of our client go on at another one; calls that come later do not notice."""

    async def kill_under_streams() -> rolling.Tally:
        tally, there = rolling.Tally(), balanced.address
        async with (
            AsyncClient(there) as client,
            AsyncClient(balanced.addresses[1]) as admin,
            rolling.plain_channel(there) as channel,
        ):
            streams = [asyncio.create_task(rolling.call_ours(client, tally, number)) for number in range(9)]
            while (await admin.load()).ranks[0].running_requests < sum(not each.done() for each in streams):
                await asyncio.sleep(0.02)
            balanced.signal("frontend 0", signal.SIGKILL)
            assert await asyncio.to_thread(balanced.wait_end, "frontend 0") == -signal.SIGKILL
            for number in range(12):
                await rolling.call_plainly(channel, number)
            await asyncio.gather(*streams)
        return tally

    def go_on() -> bool:
        """Whether some did: on a busy machine they may be over before the kill."""
        tally = asyncio.run(kill_under_streams())
        balanced.start_frontend(0)
        balanced.wait_ready(0)
        return tally.continued > 0

    services.wait_until(go_on)


@needs_nginx
def test_a_balancer_without_frontends_says_so_as_grpc_does(balanced: Topology):
    for number in range(len(balanced.ports)):
        balanced.signal(f"frontend {number}")
    for number in range(len(balanced.ports)):
        balanced.wait_end(f"frontend {number}")
    with Client(balanced.address) as client, pytest.raises(Unavailable, match="no frontend"):
        client.models()
    for number in range(len(balanced.ports)):
        balanced.start_frontend(number)
    for number in range(len(balanced.ports)):
        balanced.wait_ready(number)
    with Client(balanced.address) as client:
        client.wait_ready(services.PATIENCE_S)


@needs_nginx
def test_the_openai_api_is_behind_the_balancer(balanced: Topology):
    """Events of a stream are not kept back until the answer is whole."""
    address = f"http://127.0.0.1:{balanced.http_port}"
    body = {"prompt": "1, 2, 3,", "max_tokens": 900, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with Client(balanced.addresses[1]) as admin:
        admin.wait_ready(services.PATIENCE_S)

        def begins_before_its_end() -> bool:
            """Whether the request ran when its first event was here."""
            with urllib.request.urlopen(request, timeout=services.PATIENCE_S) as answer:
                first = answer.readline()
                running = admin.load().ranks[0].running_requests
                rest = answer.read()
            assert first.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n")
            return running > 0

        services.wait_until(begins_before_its_end)
    with urllib.request.urlopen(f"{address}/health", timeout=services.PATIENCE_S) as answer:
        assert answer.status == 200


@needs_nginx
def test_the_balancer_keeps_admins_out(balanced: Topology):
    """Frontends without tokens take AdminService from their own machine, and there the balancer is."""
    with Client(balanced.addresses[0]) as client:
        client.server_info()
    with Client(balanced.address) as client, pytest.raises(PermissionDenied):
        client.server_info()


@needs_nginx
def test_more_streams_on_one_connection_than_nginx_takes_by_default(balanced: Topology):
    """Its default is 128; the others would wait at the client."""

    async def call() -> None:
        async with rolling.plain_channel(balanced.address) as channel:
            calls = [asyncio.create_task(rolling.call_plainly(channel, number)) for number in range(200)]
            with contextlib.suppress(grpc.aio.AioRpcError):
                await asyncio.gather(*calls)
            assert all(call.exception() is None for call in calls)

    asyncio.run(call())
