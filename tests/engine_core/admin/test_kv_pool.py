"""The picture of the KV pool."""

from collections.abc import Iterator

import pytest

from pagewire.v1 import inspection_pb2 as pb
from tests.engine_core.admin.asking import ask
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House

LONG = list(range(20, 32))


@pytest.fixture
def house() -> Iterator[House]:
    """One request has ended and left cached blocks; two run and share their prompt."""
    made = House()
    made.put(add_request(1, 12, max_tokens=2))
    made.run()
    made.put(add_request(2, LONG, max_tokens=30, ignore_eos=True, tenant="a"))
    made.step()
    made.put(add_request(3, LONG, max_tokens=30, ignore_eos=True, tenant="a"))
    made.step()
    yield made
    made.inbox.close()


def drawn(house: House, cells: int) -> pb.KvPool:
    return ask(house, get_kv_pool=pb.GetKvPoolRequest(max_cells=cells)).kv_pool


@pytest.mark.parametrize(("cells", "blocks_per_cell", "num_cells"), [(1000, 1, 64), (10, 7, 10), (1, 64, 1)])
def test_the_picture_adds_up(house: House, cells: int, blocks_per_cell: int, num_cells: int) -> None:
    pool = drawn(house, cells)
    assert (pool.block_size, pool.num_blocks, pool.blocks_per_cell) == (4, 64, blocks_per_cell)
    columns = (pool.cell_held, pool.cell_shared, pool.cell_free_cached, pool.cell_holder)
    assert {len(column) for column in columns} == {num_cells}
    assert sum(pool.cell_held) == pool.held_blocks == 64 - house.scheduler.pool.num_free
    assert sum(pool.cell_shared) == pool.shared_blocks == 2
    assert sum(pool.cell_free_cached) == pool.free_cached_blocks == 3
    assert pool.cached_blocks > pool.free_cached_blocks
    assert [holder.request_id for holder in pool.holders] == ["request-2", "request-3"]
    assert sum(holder.blocks for holder in pool.holders) == pool.held_blocks + pool.shared_blocks


def test_each_cell_names_a_holder(house: House) -> None:
    pool = drawn(house, 64)
    for block, number in enumerate(pool.cell_holder):
        assert bool(number) == bool(pool.cell_held[block])
        if number:
            handle = int(pool.holders[number - 1].request_id.removeprefix("request-"))
            (request,) = (each for each in house.scheduler.requests if each.handle == handle)
            assert block in request.sequences[0].blocks


def test_an_empty_pool() -> None:
    house = House()
    pool = drawn(house, 8)
    assert not pool.held_blocks and not pool.holders and list(pool.cell_held) == [0] * 8
    house.inbox.close()
