"""Order of preemption when the pool runs short.

    1. lowest priority class (largest number)
    2. least recompute cost: tokens that would have to be computed again
    3. most recently admitted

Blocks are allocated in the opposite order, so that no victim has received any in the same plan. The sequence
with the highest recompute cost in the best class always gets what it needs, so there is always progress.
"""

from bisect import bisect_left
from collections.abc import Callable

from engine_core.kv_cache.block_tables import BlockTables
from engine_core.request import Sequence


def victims_first(running: list[Sequence], tokens_lost: Callable[[Sequence], int]) -> list[Sequence]:
    """Returns the running sequences, given in order of admission, in order of preemption.

    tokens_lost: how many tokens must be computed again if a sequence is preempted.
    """
    order = [
        (-sequence.request.priority, tokens_lost(sequence), -position)
        for position, sequence in enumerate(running)
    ]
    return [running[-position] for _, _, position in sorted(order)]


def num_tokens_lost(sequence: Sequence, tables: BlockTables) -> int:
    """Returns the tokens that would have to be computed again if the sequence lost its blocks.

    Blocks that it shares with other sequences, the first ones of its table, stay and are found again. (Its
    own may stay in the prefix cache for a while, but a preemption frees blocks because they are needed.)
    """
    blocks, is_shared = sequence.blocks, tables.pool.is_shared
    if not blocks or not is_shared(blocks[0]):
        return sequence.num_computed_tokens
    shared = bisect_left(blocks, True, key=lambda block: not is_shared(block))
    return max(0, sequence.num_computed_tokens - shared * tables.block_size)
