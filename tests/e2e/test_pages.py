"""Lists in pages, of a service with two engine cores."""

from contextlib import ExitStack
from pathlib import Path

from pagewire import Client
from tests.e2e import services
from tests.e2e.test_simulated import without_weights

NAMES = [f"request-{number}" for number in range(7)]


def test_every_request_and_tenant_is_on_one_page(tmp_path: Path):
    """The answers take a minute: all requests stay in flight."""
    with (
        services.start(
            without_weights(tmp_path),
            device="simulated",
            profile="h200",
            num_blocks=64,
            worker_fault=("slow-factor=5000",),
            data_parallel_size=2,
        ) as service,
        Client(service.address) as client,
        ExitStack() as streams,
    ):
        for number, name in enumerate(NAMES):
            options = {"max_tokens": 900, "request_id": name, "tenant": "ab"[number % 2]}
            next(streams.enter_context(client.stream("a", **options)))
        whole = list(client.list_requests())
        assert [each.request_id for each in whole] == NAMES and {each.rank for each in whole} == {0, 1}
        of_tenants = sorted({(each.tenant, each.rank) for each in whole})
        for size in (1, 2, 3, 7):
            requests, tenants = client.list_requests(page_size=size), client.list_tenants(page_size=size)
            assert [each.request_id for each in requests] == NAMES and requests.total == len(NAMES)
            assert [(each.tenant, each.rank) for each in tenants] == of_tenants
            own = client.list_requests(tenant="a", page_size=size)
            assert [each.request_id for each in own] == NAMES[::2] and own.total == len(NAMES[::2])
