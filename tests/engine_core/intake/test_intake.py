"""Intake: the order of its checks, and what it counts."""

from collections.abc import Iterator

import pytest

from engine_core.context import CoreContext, Identity
from engine_core.errors import Code, Refused
from engine_core.intake.intake import Intake
from engine_core.intake.overload import QueueBounds
from engine_core.quarantine.blame import STRIKES, Span, Suspect, key_of
from engine_core.quarantine.crash_journal import CrashJournal, new_journal
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import AddRequest, TenantTerms, Welcome
from tests.engine_core.fakes import LIMITS, add_request

Taken = tuple[Intake, Scheduler]


def make_intake(bounds: QueueBounds | None = None, rows: int = 4) -> Taken:
    scheduler = Scheduler(num_blocks=64, block_size=4, max_num_seqs=rows, max_num_batched_tokens=64)
    context = CoreContext(Identity(Welcome(), LIMITS), scheduler, lambda *_: None, lambda: 100.0)
    return Intake(context, bounds or QueueBounds()), scheduler


@pytest.fixture
def taken() -> Iterator[Taken]:
    yield make_intake()


def refusal(intake: Intake, message: AddRequest, arrival: float = 100.0) -> Refused:
    with pytest.raises(Refused) as caught:
        intake.check_aborts(message, arrival)
        intake.admit(message, b"frontend", arrival)
    return caught.value


def test_an_admitted_request_is_for_the_scheduler(taken: Taken) -> None:
    intake, scheduler = taken
    request = intake.admit(add_request(7, 5), b"frontend", 99.5)
    assert (request.frontend, request.handle, request.arrival) == (b"frontend", 7, 99.5)
    assert not len(scheduler.requests) and not intake.refused


def test_refusals_are_counted_by_reason(taken: Taken) -> None:
    intake, _ = taken
    for handle in range(2):
        assert refusal(intake, add_request(handle, [])).field == "prompt"
    assert intake.refused == {"INVALID_FIELD": 2}


def test_an_id_in_flight_is_refused_before_anything_else_is_read(taken: Taken) -> None:
    intake, scheduler = taken
    scheduler.add(intake.admit(add_request(1, request_id="same"), b"a", 100.0))
    refused = refusal(intake, add_request(2, [], request_id="same"))
    assert (refused.reason, refused.code) == ("REQUEST_ID_IN_USE", Code.ALREADY_EXISTS)


def test_an_abort_that_overtook_its_request(taken: Taken) -> None:
    """A request that was sent before the Abort is refused, a new one with the same id is not."""
    intake, _ = taken
    intake.recent_aborts.add("same", 99.0)
    late = add_request(1, request_id="same")
    late.age_us = 2_000_000
    assert refusal(intake, late).reason == "REQUEST_ABORTED"
    assert intake.refused == {"REQUEST_ABORTED": 1}
    intake.check_aborts(add_request(2, request_id="same"), 100.0)


def test_an_abort_by_group_holds_for_each_of_it(taken: Taken) -> None:
    intake, _ = taken
    intake.recent_aborts.add("group", 100.0)
    message = add_request(1)
    message.group = "group"
    assert refusal(intake, message).reason == "REQUEST_ABORTED"


def test_a_quarantined_request_is_refused_once(taken: Taken) -> None:
    intake, scheduler = taken
    message = add_request(1, request_id="poison")
    suspects = {key_of("", "poison"): Suspect(Span(1, 2), 1, 1, STRIKES)}
    scheduler.open(CrashJournal(new_journal(1, suspects, scheduler.num_rows)))
    refused = refusal(intake, message)
    assert (refused.reason, refused.code) == ("REQUEST_QUARANTINED", Code.INTERNAL)
    assert intake.admit(message, b"a", 100.0), "then it runs once more, alone"


def test_a_full_queue_is_found_before_the_request_is_validated() -> None:
    intake, scheduler = make_intake(QueueBounds(requests=1), rows=1)
    for handle in range(2):
        scheduler.add(intake.admit(add_request(handle), b"a", 100.0))
    assert refusal(intake, add_request(5, [])).reason == "QUEUE_FULL"


def test_a_request_that_was_admitted_before_is_not_charged_again(taken: Taken) -> None:
    """A frontend resends it after the death of a core: the tenant has paid for its prompt."""
    intake, _ = taken
    terms = TenantTerms(max_tokens_per_minute=10)
    for handle in range(5):
        message = add_request(handle, 10, tenant="a")
        message.tenant_terms.CopyFrom(terms)
        message.again = True
        assert intake.admit(message, b"a", 100.0)
    first, second = add_request(8, 10, tenant="a"), add_request(9, 10, tenant="a")
    for message in (first, second):
        message.tenant_terms.CopyFrom(terms)
    assert intake.admit(first, b"a", 100.0)
    assert refusal(intake, second).quota == "tokens_per_minute"
