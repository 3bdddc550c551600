"""Draws the KV pool: which blocks are held, shared and cached, in a bounded number of cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.v1 import inspection_pb2 as pb

MAX_CELLS = 16_384
_BLOCKS_PER_UNIT = 16
"""Blocks that are counted in a microsecond."""
_ENTRIES_PER_UNIT = 8
"""Entries of block tables that are counted in a microsecond."""
_PIECE = 4096
"""Cells and blocks between two yields."""


def draw_pool(
    scheduler: Scheduler, call: pb.GetKvPoolRequest, result: pb.KvPool
) -> Generator[int, None, None]:
    """Fills the result; yields work done, in microseconds. The totals are of one moment, the picture is put
    together over some steps."""
    pool, swap = scheduler.pool, scheduler.swap
    max_cells = min(max(call.max_cells, 1), MAX_CELLS)
    per_cell = max(-(-pool.num_blocks // max_cells), 1)
    result.block_size, result.num_blocks = scheduler.tables.block_size, pool.num_blocks
    result.blocks_per_cell = per_cell
    result.held_blocks = pool.num_blocks - pool.num_free
    result.cached_blocks, result.free_cached_blocks = pool.num_cached, pool.num_free_cached
    result.num_host_blocks, result.used_host_blocks = swap.num_blocks, swap.num_blocks - swap.num_free
    piece = max(_PIECE // per_cell, 1) * per_cell
    for start in range(0, pool.num_blocks, piece):
        end = min(start + piece, pool.num_blocks)
        for first in range(start, end, per_cell):
            held, shared, free_cached = pool.count(first, min(first + per_cell, end))
            result.cell_held.append(held)
            result.cell_shared.append(shared)
            result.cell_free_cached.append(free_cached)
            result.shared_blocks += shared
        yield 1 + (end - start) // _BLOCKS_PER_UNIT + len(range(start, end, per_cell))
    yield from _put_holders(scheduler, per_cell, result)


def _put_holders(scheduler: Scheduler, per_cell: int, result: pb.KvPool) -> Generator[int, None, None]:
    numbers: dict[Request, int] = {}
    cells: list[dict[int, int]] = [{} for _ in result.cell_held]  # of each: number of a holder -> its blocks
    for sequence in list(scheduler.states.holders()):
        if not sequence.blocks:
            continue  # it has ended since the first step
        number = numbers.setdefault(sequence.request, len(numbers) + 1)
        if number > len(result.holders):
            request = sequence.request
            result.holders.add(request_id=request.request_id, tenant=request.tenant)
        result.holders[number - 1].blocks += len(sequence.blocks)
        for cell, count in Counter(block // per_cell for block in sequence.blocks).items():
            cells[cell][number] = cells[cell].get(number, 0) + count
        yield 2 + len(sequence.blocks) // _ENTRIES_PER_UNIT
    for start in range(0, len(cells), _PIECE):
        piece = cells[start : start + _PIECE]
        result.cell_holder.extend(max(held, key=held.__getitem__) if held else 0 for held in piece)
        yield len(piece) // 4
