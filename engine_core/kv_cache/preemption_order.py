"""Who is preempted when the pool runs short: whoever matters least, and then whoever loses least.

    1. the lowest priority class (the largest number)
    2. the least work lost: tokens that would have to be computed again
    3. the one admitted last

Blocks are given in the opposite order, so that no victim has been given any in the same plan. The sequence
that has the most to lose in the best class always gets what it needs: something always goes on.
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
    """Tokens that would have to be computed again if the sequence lost its blocks.

    The blocks that it shares with others stay, and are found again; they are the first ones of its table.
    (Its own may stay in the prefix cache for a while. But blocks are being taken because they are needed.)
    """
    blocks, is_shared = sequence.blocks, tables.pool.is_shared
    if not blocks or not is_shared(blocks[0]):
        return sequence.num_computed_tokens
    shared = bisect_left(blocks, True, key=lambda block: not is_shared(block))
    return max(0, sequence.num_computed_tokens - shared * tables.block_size)
