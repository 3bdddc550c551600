"""A request whose prefix another core holds: copied where that works, else computed."""

import collections

import pytest

from engine_core.admin.requests import list_requests
from engine_core.io.inbox import FrontendGone
from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.kv_transfer.leases import LEASE_S
from engine_core.kv_transfer.pulls import ANSWER_S, FIRST_RATE
from engine_core.scheduler.outputs.wait_causes import Cause
from pagewire.internal.v1.engine_pb2 import Abort, ListRequests
from pagewire.internal.v1.worker_pb2 import BlocksRead, ReadBlocks
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import inspection_pb2 as pb
from tests.engine_core.fakes import add_item, add_request
from tests.engine_core.kv_transfer.two_cores import HOLDER, LINK, TwoCores

ALL_BLOCKS = 5
"""Of the prompt of 21 tokens; a block has 4."""


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "ahead"])
def test_a_prefix_is_copied(ahead: bool) -> None:
    """The fake worker raises when a row reads anything but its own history."""
    cores = TwoCores(ahead=ahead)
    cores.warm()
    cores.ask()
    cores.finish()
    cores.assert_pulled(ALL_BLOCKS)
    assert cores.num_prefilled == 21 - 4 * ALL_BLOCKS
    assert cores.link.closed == 1
    cores.step(3)
    assert not len(cores.holder.core.transfer.leases)


def test_a_prefix_with_images_is_copied_and_not_encoded() -> None:
    """Of an image whose last vectors are behind the copied blocks all are made again."""
    cores = TwoCores()
    add_item(cores.message, range(2, 8), b"copied")
    add_item(cores.message, range(18, 21), b"needed")
    cores.warm()
    cores.ask()
    cores.finish()
    cores.assert_pulled(ALL_BLOCKS)
    assert cores.holder.scheduler.encoder.num_encoded_vectors == 9
    assert cores.reader.scheduler.encoder.num_encoded_vectors == 3


def test_a_running_request_is_copied_too() -> None:
    """Blocks that plans in flight compute are told only once these are executed."""
    cores = TwoCores(ahead=True)
    cores.holder.put(cores.message)
    cores.holder.step(2)
    cores.ask()
    cores.finish()
    cores.assert_pulled(ALL_BLOCKS)


def test_delivered_output_is_part_of_the_prefix() -> None:
    cores = TwoCores()
    cores.message = add_request(1, 10, max_tokens=14)
    cores.warm()
    output = cores.holder.outputs_of(b"a").tokens[1, 0][:9]
    cores.message = add_request(1, 10, max_tokens=14, delivered={0: output})
    cores.ask()
    cores.step(20)
    cores.assert_pulled(4)


def test_blocks_that_the_reader_has_are_not_copied() -> None:
    cores = TwoCores()
    cores.warm()
    cores.reader.put(add_request(7, [3 + (7 + i) % 994 for i in range(9)]))
    cores.reader.run()
    cores.ask()
    cores.step(20)
    cores.assert_pulled(ALL_BLOCKS - 2)


def test_a_holder_that_has_nothing() -> None:
    cores = TwoCores()
    cores.ask()
    cores.finish()
    assert cores.outcomes() == {"nothing": 1}
    assert cores.num_prefilled == 21


def test_another_secret_names_nothing() -> None:
    """Such as that of other weights."""
    cores = TwoCores()
    cores.warm()
    cores.reader.scheduler.prefix_cache.secret = b"t" * 32
    cores.ask()
    cores.finish()
    assert cores.outcomes() == {"nothing": 1}


def test_a_copy_that_takes_longer_than_computing_is_not_made() -> None:
    """5 blocks of 1,000 bytes take 10 us, and 20 tokens 2 us."""
    cores = TwoCores(costs=SwapCosts(prefill_us_per_token=0.1))
    cores.warm()
    cores.ask()
    cores.finish()
    assert cores.outcomes() == {} and cores.num_prefilled == 21


def test_a_slow_copy_is_forgotten() -> None:
    """It may have been slow by chance: after some requests that were computed a holder is asked again."""
    cores = TwoCores(costs=SwapCosts(prefill_us_per_token=1.0))
    cores.reader.core.transfer.pulls.rate = FIRST_RATE / 10
    number = 0
    while not cores.outcomes():
        number += 1
        assert number < 20
        message = add_request(number, 21, max_tokens=1)
        message.holder = HOLDER
        cores.reader.put(message)
        cores.step(20)
    assert number > 3 and cores.outcomes() == {"nothing": 1}


@pytest.mark.parametrize("after", range(4))
def test_a_holder_that_is_gone_or_silent(after: int) -> None:
    """Whenever it happens, the request begins within the deadline, and computes."""
    for is_gone in (False, True):
        cores = TwoCores()
        cores.warm()
        cores.ask()
        for _ in range(after):
            cores.step()
        if is_gone:
            cores.link.holder = None
        else:
            cores.link.is_cut = True
        cores.finish(seconds=ANSWER_S / 4)
        assert sum(cores.outcomes().values()) == 1


def test_an_address_that_cannot_be_used() -> None:
    cores = TwoCores()
    cores.message.holder = "nonsense"
    cores.reader.put(cores.message)
    cores.finish()
    assert cores.outcomes() == {"late": 1}


def test_a_block_that_is_reused_meanwhile() -> None:
    """The holder empties its cache before the lease ends: nothing that was read is used."""
    cores = TwoCores()
    cores.warm()
    cores.ask()
    read = cores.reader.worker.read_blocks

    def reset_then_read(order: ReadBlocks) -> None:
        read(order)
        cores.holder.scheduler.reset_cache()

    cores.reader.worker.read_blocks = reset_then_read  # type: ignore[method-assign]
    cores.finish()
    assert cores.outcomes() == {"failed": 1}
    assert cores.num_prefilled == 21


def test_a_worker_that_cannot_read() -> None:
    """A lying sender, a wrong length, a closed port: the worker says why, and the request computes."""
    cores = TwoCores()
    cores.warm()
    cores.ask()

    def fail(order: ReadBlocks) -> None:
        cores.reader.worker.reading.append(BlocksRead(number=order.number, problem="a block is wrong"))

    cores.reader.worker.read_blocks = fail  # type: ignore[method-assign]
    cores.finish()
    assert cores.outcomes() == {"failed": 1}
    cores.step()
    assert not len(cores.holder.core.transfer.leases)


def test_a_worker_that_does_not_answer_keeps_its_targets() -> None:
    """They are freed when it does: until then a thread may write there."""
    cores = TwoCores()
    cores.warm()
    cores.ask()
    orders: list[ReadBlocks] = []
    cores.reader.worker.read_blocks = orders.append  # type: ignore[method-assign]
    for _ in range(40):
        cores.step(seconds=0.1)
    pool = cores.reader.scheduler.pool
    assert cores.outcomes() == {"late": 1} and not cores.reader.scheduler.requests
    assert pool.num_free == pool.num_blocks - ALL_BLOCKS
    cores.reader.worker.reading.append(BlocksRead(number=orders[0].number, problem="it was stopped"))
    cores.step()
    assert pool.num_free == pool.num_blocks


def test_a_full_cache() -> None:
    """A pull takes at most half of the free blocks."""
    cores = TwoCores(blocks=8)
    cores.warm()
    cores.ask()
    cores.finish()
    assert cores.outcomes() == {"full": 1}


def test_a_pull_yields_to_a_request_that_lacks_its_blocks() -> None:
    """Nothing runs, so it does not wait for the copy; the core sleeps until the worker has stopped."""
    cores = TwoCores(blocks=12)
    cores.warm()
    cores.ask()
    orders: list[ReadBlocks] = []
    cores.reader.worker.read_blocks = orders.append  # type: ignore[method-assign]
    while not orders:
        cores.step()
    scheduler = cores.reader.scheduler
    cores.reader.put(add_request(2, 36, max_tokens=2, ignore_eos=True))
    cores.step(2)
    assert cores.outcomes() == {"full": 1}
    cores.step(10)
    assert scheduler.waiting and not scheduler.running and scheduler.idle_sleep
    cores.reader.worker.reading.append(BlocksRead(number=orders[0].number, problem="it was stopped"))
    cores.finish()
    assert scheduler.pool.num_free == scheduler.pool.num_blocks


def test_a_request_that_comes_to_an_idle_holder_ends_no_lease() -> None:
    """It waits when leases are reviewed, and lacks nothing."""
    cores = TwoCores()
    cores.warm()
    cores.ask()
    cores.step()
    cores.holder.put(add_request(5, 9))
    cores.holder.step()
    assert held(cores) == ALL_BLOCKS
    cores.finish()
    cores.assert_pulled(ALL_BLOCKS)


def test_a_request_that_ends_meanwhile() -> None:
    cores = TwoCores()
    cores.warm()
    cores.ask()
    cores.step()
    cores.reader.put(Abort(handle=1))
    cores.step(5)
    assert cores.outcomes() == {"ended": 1}
    assert not cores.reader.scheduler.requests and not len(cores.holder.core.transfer.leases)


def test_the_wait_has_a_cause_of_its_own() -> None:
    """From the arrival to the step in which the request begins; what follows is the queue."""
    cores = TwoCores()
    cores.warm()
    cores.ask()
    cores.step(1, seconds=0.125)
    info = pb.ListRequestsResponse()
    collections.deque(
        list_requests(cores.reader.scheduler.states, ListRequests(limit=1), info, cores.reader.now), maxlen=0
    )
    assert info.requests[0].waits_for == pb.WAIT_CAUSE_KV_TRANSFER
    cores.finish(seconds=0.125)
    cores.assert_pulled(ALL_BLOCKS)
    (waits,) = started_waits(cores)
    assert waits[Cause.KV_TRANSFER] > 100_000 and sum(waits) == waits[Cause.KV_TRANSFER]


def test_a_request_that_pulls_nothing_has_not_waited_for_it() -> None:
    cores = TwoCores()
    cores.reader.put(cores.message)
    cores.finish(seconds=0.125)
    assert started_waits(cores) == []


def test_a_request_that_ends_before_its_turn_leaves_no_wait() -> None:
    cores = TwoCores()
    cores.warm()
    cores.ask()
    cores.step(1, seconds=0.125)
    cores.reader.put(Abort(handle=1))
    cores.step(5)
    causes = cores.reader.scheduler.states.wait_causes
    assert not causes._at_arrival and not causes._queued


def started_waits(cores: TwoCores) -> list[list[int]]:
    """Microseconds by cause of the reader's requests that have waited for any."""
    sent = [message.step_outputs.started_waits_us for _, message in cores.reader.sent]
    return [unpack_u32(each) for each in sent if each]


# Leases.


def held(cores: TwoCores) -> int:
    return sum(map(len, cores.holder.scheduler.tables.held.values()))


def test_a_lease_ends_by_itself() -> None:
    cores = TwoCores()
    cores.warm()
    cores.ask()
    cores.step()
    assert held(cores) == ALL_BLOCKS
    cores.link.is_cut = True
    cores.step(3, seconds=LEASE_S / 2)
    assert not held(cores)


def test_a_reader_that_is_gone_holds_nothing() -> None:
    cores = TwoCores()
    cores.warm()
    cores.ask()
    cores.step()
    cores.holder.inbox.put(FrontendGone(LINK))
    cores.holder.step()
    assert not held(cores)


def test_a_holder_that_is_short_of_blocks_ends_leases() -> None:
    cores = TwoCores()
    cores.warm()
    cores.ask()
    cores.step()
    pool = cores.holder.scheduler.pool
    cores.holder.scheduler.tables.take("another", pool.num_free)
    cores.holder.put(add_request(5, 40))
    cores.holder.step(2)
    assert not held(cores) - (pool.num_blocks - ALL_BLOCKS)
    cores.holder.scheduler.tables.release("another")
    cores.holder.run()
    cores.finish()
    assert cores.outcomes() == {"failed": 1}
