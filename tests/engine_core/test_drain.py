"""The orderly end of a core."""

import pytest

from engine_core.io.inbox import DrainRequested
from engine_core.io.process_control import Stopped
from engine_core.kv_transfer.leases import LEASE_S
from pagewire.internal.v1.engine_pb2 import Abort, Hello
from pagewire.ipc.columns import unpack_u32
from tests.engine_core.fakes import add_request, expected_output
from tests.engine_core.house import EPOCH, House
from tests.engine_core.kv_transfer.two_cores import TwoCores


def draining(house: House) -> None:
    house.put(Hello(frontend_id="a", known_epoch=EPOCH))
    house.put(add_request(1, 21, max_tokens=30))
    house.step(2)
    house.inbox.put(DrainRequested())
    house.step()


def test_frontends_are_told_once() -> None:
    house = House(drain_timeout=10.0)
    draining(house)
    house.step(3)
    told = [frontend for frontend, message in house.sent if message.HasField("leaving")]
    assert told == [b"a"]


def test_requests_that_are_not_moved_run_on_until_the_timeout() -> None:
    house = House(drain_timeout=10.0)
    draining(house)
    house.now = 9.9
    house.step()
    assert house.scheduler.requests
    house.now = 10.1
    with pytest.raises(Stopped):
        house.step()


def test_it_stays_for_as_long_as_a_lease_lasts() -> None:
    """A core that has taken over a request has not asked yet when the request is gone from here."""
    house = House(drain_timeout=10.0)
    draining(house)
    house.put(Abort(handle=1))
    house.step()
    house.now += LEASE_S - 0.1
    house.step()
    house.now += 0.2
    with pytest.raises(Stopped):
        house.step()


def test_a_core_without_requests_ends_at_once() -> None:
    house = House(drain_timeout=10.0)
    house.inbox.put(DrainRequested())
    with pytest.raises(Stopped):
        house.step()


def test_a_moved_request_finds_its_blocks() -> None:
    """The frontend ends it here, and sends it to the other core with the output so far."""
    cores = TwoCores(ahead=True)
    cores.message = add_request(1, 21, max_tokens=12)
    cores.holder.put(cores.message)
    cores.holder.step(6)
    cores.holder.inbox.put(DrainRequested())
    cores.holder.put(Abort(handle=1))
    cores.holder.step()
    output = cores.holder.outputs_of(b"a").tokens[1, 0]
    cores.message = add_request(1, 21, max_tokens=12, delivered={0: output})
    cores.ask()
    cores.step(30)
    assert cores.outcomes() == {"pulled": 1}
    columns = [message.step_outputs.token_ids for _, message in cores.reader.sent]
    assert output + unpack_u32(b"".join(columns)) == expected_output(add_request(1, 21, max_tokens=12), 0)[0]
