"""Rank 0 drafts for all ranks."""

import numpy as np

from tests.worker.ranks import on_ranks
from tests.worker.speculation.test_sources import Scripted
from worker.parallel import ParallelGroup
from worker.speculation.of_ranks import FirstSources, FollowingSources

TOKENS = np.full(8, 100)
ROWS = {1: 5, 2: 2, 3: 4}


def shorten(row: int, tokens: list[int]) -> list[int]:
    return tokens[:3] if row == 1 else tokens


def test_all_ranks_get_the_drafts_of_rank_0() -> None:
    """As short as they are there; none, where there is none. Only rank 0 learns from what became of them."""

    def work(group: ParallelGroup) -> list[dict[int, list[int]]]:
        if group.rank == 0:
            kind, drafters = FirstSources, [(4, Scripted(5, {1, 2}))]
        else:
            kind, drafters = FollowingSources, []
        sources = kind(drafters, 8, shorten, group.tell)
        found = [sources.draft(ROWS, TOKENS), sources.draft({}, TOKENS), sources.draft({3: 1}, TOKENS)]
        assert sources.method(1) == (0 if group.rank else 4)
        for _ in range(3):
            sources.judge(1, 100, 1, 0)
        assert bool(sources.foresee(ROWS, TOKENS)) == (group.rank == 0)
        found.append(sources.draft(ROWS, TOKENS))
        sources.remove_row(1)
        return found

    expected = [{1: [5, 5, 5], 2: [5, 5]}, {}, {}, {2: [5, 5]}]
    assert on_ranks(2, work) == [expected] * 2
    assert on_ranks(4, work) == [expected] * 4
