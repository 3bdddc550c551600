"""Quotas of tenants, and the refusals when they are used up."""

import pytest

from engine_core.errors import Code
from engine_core.intake.quotas import REQUESTS, SEQUENCES, TENANT_QUOTA, TOKENS
from engine_core.io.inbox import FrontendGone
from pagewire.internal.v1.engine_pb2 import Abort, RequestFailed, TenantTerms
from pagewire.v1.generation_pb2 import BeamSearch
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House

FEW = TenantTerms(max_requests=2)
SLOW = TenantTerms(max_tokens_per_minute=60)


def refused(house: House) -> dict[int, RequestFailed]:
    return {failure.handle: failure for failure in house.failures()}


def delay(failure: RequestFailed) -> float:
    return failure.retry_delay.ToTimedelta().total_seconds()


def test_requests_in_flight() -> None:
    """Of one tenant, from all frontends; other tenants have their own quotas."""
    house = House()
    house.put(add_request(1, tenant="a", terms=FEW))
    house.put(add_request(2, tenant="a", terms=FEW), frontend=b"b")
    house.put(add_request(3, tenant="a", terms=FEW))
    house.put(add_request(4, tenant="b", terms=FEW))
    house.put(add_request(5))
    house.step()
    assert {*refused(house)} == {3}
    failure = refused(house)[3]
    assert (failure.code, failure.reason, failure.quota) == (Code.RESOURCE_EXHAUSTED, TENANT_QUOTA, REQUESTS)
    assert delay(failure) > 0 and not failure.field
    house.put(Abort(handle=1))
    house.put(add_request(6, tenant="a", terms=FEW))
    house.step()
    assert 6 not in refused(house)
    house.run()
    assert not house.scheduler.requests.num_of_tenant("a")
    house.inbox.close()


def test_continued_streams_may_fill_a_quota_twice() -> None:
    """Their frontend has died, which the core may not know yet. A resent request is never refused."""
    house = House()
    for handle in (1, 2):
        house.put(add_request(handle, tenant="a", terms=FEW))
    for handle in (3, 4, 5):
        house.put(add_request(handle, tenant="a", terms=FEW, delivered={0: [7]}))
    house.put(add_request(6, tenant="a", terms=FEW, again=True))
    house.step()
    assert {*refused(house)} == {5}
    house.inbox.close()


def test_tokens_per_minute() -> None:
    """60 tokens per minute are one per second: 20 of prompt and 10 of output are 30 seconds."""
    house = House()
    for handle in (1, 2):
        house.put(add_request(handle, 20, max_tokens=10, ignore_eos=True, tenant="a", terms=SLOW))
    house.run()
    assert not refused(house)
    house.put(add_request(3, 5, tenant="a", terms=SLOW))
    house.put(add_request(4, 5, tenant="b", terms=SLOW))
    house.put(add_request(5, 5, tenant="a", terms=SLOW, again=True))
    house.step()
    assert {*refused(house)} == {3}
    assert refused(house)[3].quota == TOKENS and delay(refused(house)[3]) == pytest.approx(5)
    house.run()
    house.now += delay(refused(house)[3]) + 4.5  # what the one that came again has made meanwhile
    house.put(add_request(6, 5, tenant="a", terms=SLOW))
    house.step()
    assert 6 not in refused(house)
    house.inbox.close()


def test_a_prompt_longer_than_a_minute_is_admitted_when_nothing_is_owed() -> None:
    house = House()
    house.put(add_request(1, 40, max_tokens=1, tenant="a", terms=TenantTerms(max_tokens_per_minute=30)))
    house.run()
    house.put(add_request(2, 5, max_tokens=1, tenant="a", terms=TenantTerms(max_tokens_per_minute=30)))
    house.step()
    assert delay(refused(house)[2]) == pytest.approx(2 * (41 + 5) - 60)
    house.inbox.close()


def test_the_latest_terms_apply() -> None:
    house = House()
    house.put(add_request(1, 50, max_tokens=8, ignore_eos=True, tenant="a", terms=SLOW))
    house.run()
    house.put(add_request(2, 30, tenant="a", terms=SLOW))
    house.put(add_request(3, 30, tenant="a", terms=TenantTerms(max_tokens_per_minute=6000)))
    house.put(add_request(4, 30, tenant="a"))
    house.put(add_request(5, 30, tenant="a", terms=SLOW))
    house.step()
    assert {*refused(house)} == {2}, "without terms there is no quota, and none is remembered"
    house.inbox.close()


def test_delivered_output_is_not_charged_twice() -> None:
    house = House()
    house.put(
        add_request(
            1, 20, max_tokens=30, ignore_eos=True, tenant="a", terms=SLOW, delivered={0: [7] * 28}, again=True
        )
    )
    house.run()
    house.put(add_request(2, 55, max_tokens=1, tenant="a", terms=SLOW))
    house.step()
    assert not refused(house), "two tokens were made here"
    house.inbox.close()


def test_a_continuation_is_charged_for_what_it_computes() -> None:
    """A tenant once computed without being charged by sending its prompts as output so far."""
    house = House()
    house.put(
        add_request(1, 1, max_tokens=45, ignore_eos=True, tenant="a", terms=SLOW, delivered={0: [7] * 44})
    )
    house.run()
    house.put(
        add_request(2, 1, max_tokens=45, ignore_eos=True, tenant="a", terms=SLOW, delivered={0: [7] * 44})
    )
    house.run()
    house.put(
        add_request(3, 1, max_tokens=45, ignore_eos=True, tenant="a", terms=SLOW, delivered={0: [7] * 44})
    )
    house.step()
    assert {*refused(house)} == {3}, "a continuation may fill the quota twice, and no more often"
    assert delay(refused(house)[3]) == pytest.approx(2 * 46 + 45 - 120)
    house.inbox.close()


def test_a_lost_frontend_charges_no_token_twice() -> None:
    """What its requests have cost pays for their continuations, and for nothing else after two minutes."""
    house = House()
    house.put(add_request(1, 20, max_tokens=30, ignore_eos=True, tenant="a", terms=SLOW))
    house.step(21)
    house.inbox.put(FrontendGone(b"a"))
    house.step()
    made = 30 - 10
    going_on = dict(max_tokens=30, ignore_eos=True, tenant="a", terms=SLOW, delivered={0: [7] * made})
    house.put(add_request(2, 20, **going_on), b"b")
    house.run()
    assert {*refused(house)} == {1}, "which was lost with its frontend"
    house.put(add_request(3, 12, max_tokens=1, tenant="a", terms=SLOW), b"b")
    house.step()
    assert delay(refused(house)[3]) == pytest.approx(20 + 30 + 12 - 60, abs=1.1)
    house.inbox.close()


def test_credit_is_void_after_a_while() -> None:
    house = House()
    house.put(add_request(1, 50, max_tokens=10, ignore_eos=True, tenant="a", terms=SLOW))
    house.step(3)
    house.inbox.put(FrontendGone(b"a"))
    house.step()
    house.now += 130
    for handle in (2, 3):
        house.put(add_request(handle, 40, max_tokens=1, tenant="a", terms=SLOW), b"b")
    house.step()
    assert {*refused(house)} == {1, 3}, "the first was lost with its frontend"
    house.inbox.close()


def test_sequences_in_flight() -> None:
    """n and beams count, in all requests of the tenant."""
    house, few = House(), TenantTerms(max_sequences=4)
    house.put(add_request(1, n=3, tenant="a", terms=few))
    house.put(add_request(2, n=2, tenant="a", terms=few))
    house.put(
        add_request(
            3, beams=BeamSearch(width=2, length_penalty=1, early_stopping=False), tenant="a", terms=few
        )
    )
    house.put(add_request(4, tenant="a", terms=few))
    house.put(add_request(5, n=4, tenant="b", terms=few))
    house.step()
    assert {*refused(house)} == {2, 3} and refused(house)[2].quota == SEQUENCES
    house.run()
    assert not house.scheduler.requests.num_sequences_of_tenant("a")
    house.put(add_request(6, n=4, tenant="a", terms=few))
    house.step()
    assert 6 not in refused(house)
    house.inbox.close()


def test_weights_travel_with_requests() -> None:
    """Two tenants wait; the heavy one is served three times as often, whatever the configuration says."""
    house = House(rows=1, prefix_cache=False)
    for handle in range(1, 41):
        tenant, weight = ("heavy", 3.0) if handle % 2 else ("light", 1.0)
        house.put(
            add_request(
                handle, max_tokens=4, ignore_eos=True, tenant=tenant, terms=TenantTerms(weight=weight)
            )
        )
    started: list[int] = []
    while len(started) < 20:
        house.step()
        started = list(house.outputs_of(b"a").started)
    heavy = sum(handle % 2 for handle in started)
    assert 14 <= heavy <= 16
    house.inbox.close()


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_weight_that_makes_no_sense_is_refused(weight: float) -> None:
    house = House()
    house.put(add_request(1, tenant="a", terms=TenantTerms(weight=weight)))
    house.put(add_request(2))
    house.step()
    assert refused(house)[1].code == Code.INVALID_ARGUMENT and refused(house)[1].field == "tenant"
    house.inbox.close()
