"""Tenants with requests in flight."""

from engine_core.admin import answers
from pagewire.internal.v1.engine_pb2 import TenantTerms
from pagewire.v1 import inspection_pb2 as pb
from tests.engine_core.admin.asking import ask
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House


def test_what_tenants_have_and_are_entitled_to() -> None:
    house = House(rows=2)
    for handle in range(1, 6):
        terms = TenantTerms(weight=3.0) if handle % 2 else None
        house.put(add_request(handle, tenant="ab"[handle % 2], max_tokens=30, ignore_eos=True, terms=terms))
    house.step()
    found = ask(house, list_tenants=pb.ListTenantsRequest(limit=9)).tenants
    b, a = found.tenants
    assert found.total == 2 and (b.tenant, b.requests, b.sequences) == ("b", 3, 3)
    assert a.running_sequences + b.running_sequences == 2 and a.waiting_sequences + b.waiting_sequences == 3
    assert (a.weight, b.weight) == (1.0, 3.0) and a.share + b.share == 1.0 and b.share == 0.75
    assert a.served > 0 and b.waiting_tokens == 5 * b.waiting_sequences
    found = ask(house, list_tenants=pb.ListTenantsRequest(limit=1)).tenants
    assert [each.tenant for each in found.tenants] == ["b"] and found.total == 2
    for start, names in (("", ["a", "b"]), ("a", ["a", "b"]), ("aa", ["b"]), ("c", [])):
        page = pb.ListTenantsRequest(page_size=9, page_token=start)
        found = ask(house, list_tenants=page).tenants
        assert [each.tenant for each in found.tenants] == names and found.total == 2
    found = ask(house, list_tenants=pb.ListTenantsRequest(page_size=1)).tenants
    assert [each.tenant for each in found.tenants] == ["a"]
    house.run()
    assert not ask(house, list_tenants=pb.ListTenantsRequest(limit=answers.MAX_TENANTS)).tenants.total
    house.inbox.close()
