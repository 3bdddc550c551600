"""Several frontends on one port, one engine core behind them."""

import pytest

from pagewire import Client
from pagewire_client.errors import AlreadyExists, RpcError
from tests.e2e import services

SLOWLY = ("slow-factor=40",)
"""Steps of 20 ms: a stream of 100 tokens is not over before another client has called."""


def test_two_frontends_share_a_port_and_an_engine():
    """Connections spread over them; what one started, the other can abort; and drain."""
    with services.start(device="simulated", profile="cpu", frontends=2, worker_fault=SLOWLY) as service:
        assert len(services.processes(service.pid)["frontend"]) == 2
        clients: dict[str, Client] = {}
        while len(clients) < 2:  # a new connection reaches either
            client = Client(service.address)
            clients.setdefault(client.server_info().instance_id, client)
        first, second = clients.values()
        greedy = {"temperature": 0, "max_tokens": 20}
        answers = {client.generate("The capital of France is", **greedy).text for client in clients.values()}
        assert len(answers) == 1
        options = {"max_tokens": 900, "ignore_eos": True}
        services.wait_until(lambda: services.aborted_elsewhere(first, second, "a", **options) == [1])
        services.wait_until(lambda: services.is_idle(second))
        fields = {"request_id": "same", "max_tokens": 100, "ignore_eos": True}
        with first.stream("a", **fields) as stream:
            next(stream)
            with pytest.raises(AlreadyExists):
                second.generate("another prompt", **fields)
            again = second.generate("a", **fields)
            with pytest.raises(RpcError) as caught:
                for _ in stream:
                    pass
        assert caught.value.reason == "CONTINUED_ELSEWHERE" and len(again.token_ids) == 100
        assert first.generate("a", **fields).token_ids == again.token_ids
        drained = first.drain(all_frontends=True)
        assert {one.name: one.state for one in drained} == dict.fromkeys(
            ("frontend-1", "frontend-2"), "draining"
        )
        assert not first.healthy() and not second.healthy()
        assert len(second.resume(all_frontends=True)) == 2
        assert first.healthy() and second.healthy()
