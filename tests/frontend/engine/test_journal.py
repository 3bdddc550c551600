"""The journal by itself: what is lost waits, is resent with what it has, or fails."""

import asyncio
from array import array

import pytest

from frontend.engine.core import JournalEntry
from frontend.engine.journal import MAX_DEATHS, MAX_RESENT, Journal, put_delivered
from frontend.errors import EngineDead, EngineNotReady, InternalError, Quarantined, ServiceError
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from tests.patience import until


class Core:
    def __init__(self) -> None:
        self.in_flight: dict[int, JournalEntry] = {}

    def abort(self, handle: int, *indexes: int, detach: bool = False) -> None: ...


class Sink:
    """Holds one sequence."""

    def __init__(self) -> None:
        self.tokens = array("I")
        self.error: ServiceError | None = None
        self.has_run_out = False
        self.missing_prompt_logprobs: int | None = None

    def delivered(self):
        return [(0, self.tokens, False)]

    def fail(self, error: ServiceError) -> None:
        self.error = error

    def run_out(self) -> None:
        self.has_run_out = True


def entry_of(journal: Journal, core: Core, sink: Sink, handle: int = 1, **fields) -> JournalEntry:
    request = engine_pb2.AddRequest(handle=handle, prompt_token_ids=pack_u32([1, 2, 3]), **fields)
    journal.add(request, sink, core)
    return core.in_flight[handle]


async def test_an_entry_goes_from_core_to_core():
    journal, first, second, sink = Journal(60.0), Core(), Core(), Sink()
    entry = entry_of(journal, first, sink)
    assert journal.in_flight() == [entry] and journal.num_bytes == 12
    sink.tokens.extend([7, 8])
    journal.lose(entry, EngineDead(), Quarantined(), is_dead=True)
    assert journal.waits(1) and journal.waiting() == [entry] and not first.in_flight
    again = journal.again(entry, 5)
    assert again.handle == 5 and again.again and unpack_u32(again.delivered[0].token_ids) == [7, 8]
    journal.resent(entry, second, 5)
    assert second.in_flight == {5: entry} and not journal.num_waiting and journal.num_resent == 1
    assert journal.remove(1) is entry and not len(journal) and not journal.num_bytes
    assert journal.remove(1) is None


async def test_without_patience_a_lost_entry_fails():
    journal, core, sink = Journal(0.0), Core(), Sink()
    journal.lose(entry_of(journal, core, sink), EngineDead(), Quarantined(), is_dead=True)
    assert isinstance(sink.error, EngineDead) and not len(journal)


async def test_patience_ends():
    journal, core, sink = Journal(0.02), Core(), Sink()
    journal.lose(entry_of(journal, core, sink), InternalError(), InternalError())
    await until(lambda: sink.error is not None)
    assert isinstance(sink.error, EngineDead) and not journal.num_waiting


async def test_a_new_entry_is_held_for_its_first_core():
    """It is sent like any first one: it has lost nothing, and its age says how long it has waited."""
    journal, core, sink = Journal(0.0), Core(), Sink()
    journal.hold(engine_pb2.AddRequest(handle=1, prompt_token_ids=pack_u32([1, 2, 3])), sink, 60.0)
    [entry] = journal.waiting()
    await asyncio.sleep(0.01)
    first = journal.again(entry, 5)
    assert not first.again and not first.delivered and first.age_us >= 10_000
    journal.resent(entry, core, 5)
    assert core.in_flight == {5: entry} and not journal.num_waiting
    assert journal.remove(1) is entry and not len(journal) and not journal.num_bytes


async def test_no_core_takes_an_entry_that_is_held():
    journal, sink = Journal(60.0), Sink()
    journal.hold(engine_pb2.AddRequest(handle=1), sink, 0.02)
    await until(lambda: sink.error is not None)
    assert isinstance(sink.error, EngineNotReady) and not len(journal)


async def test_a_time_limit_runs_while_an_entry_waits():
    journal, core, sink = Journal(60.0), Core(), Sink()
    entry = entry_of(journal, core, sink)
    entry.request.stopping.time_limit.FromMilliseconds(20)
    journal.lose(entry, EngineDead(), Quarantined(), is_dead=True)
    await until(lambda: sink.has_run_out)
    assert sink.error is None and not len(journal)


@pytest.mark.parametrize(("is_dead", "most"), [(False, MAX_RESENT), (True, MAX_DEATHS)])
async def test_losses_without_a_new_token_are_bounded(is_dead, most):
    journal, core, sink = Journal(60.0), Core(), Sink()
    entry = entry_of(journal, core, sink)
    for number in range(2 * most):
        if number == most:
            sink.tokens.append(9)  # progress: it counts anew
        journal.lose(entry, EngineDead(), Quarantined(), is_dead=is_dead)
        assert sink.error is None
        journal.resent(entry, core, number + 2)
    journal.lose(entry, EngineDead(), Quarantined(), is_dead=is_dead)
    assert isinstance(sink.error, Quarantined)


async def test_every_core_may_die_as_often():
    """A request that merely waits, or is there when they are killed, passes from one core to the next."""
    journal, cores, sink = Journal(60.0), [Core(), Core(), Core()], Sink()
    entry = entry_of(journal, cores[0], sink)
    for number in range(MAX_DEATHS * len(cores)):
        journal.lose(entry, EngineDead(), Quarantined(), is_dead=True, num_cores=len(cores))
        assert sink.error is None
        journal.resent(entry, cores[number % len(cores)], number + 2)
    journal.lose(entry, EngineDead(), Quarantined(), is_dead=True, num_cores=len(cores))
    assert isinstance(sink.error, Quarantined), "there is a bound all the same"


async def test_deadlines_shrink_by_the_time_that_has_passed():
    journal, core, sink = Journal(60.0), Core(), Sink()
    sink.missing_prompt_logprobs = 2
    entry = entry_of(journal, core, sink)
    entry.request.deadline.FromSeconds(10)
    entry.request.prompt_logprobs.top_n = 1
    entry.sent -= 4
    again = journal.again(entry, 2)
    assert 2 < again.deadline.ToMilliseconds() / 1000 <= 6 and again.age_us >= 4_000_000
    assert again.prompt_logprobs_start == 2 and not again.again, "it was not lost"
    sink.missing_prompt_logprobs = None
    assert not journal.again(entry, 3).HasField("prompt_logprobs")


def test_sequences_that_have_ended_are_named():
    request = engine_pb2.AddRequest(ended_indexes=[9])
    put_delivered(request, [(0, array("I", [1]), False), (1, array("I", [2]), True), (2, array("I"), False)])
    assert [(each.index, unpack_u32(each.token_ids)) for each in request.delivered] == [(0, [1])]
    assert list(request.ended_indexes) == [1]
