"""Requests that the engine dies of, when a certain token of theirs is computed.

The token is one of the prompt, or one that they have made. Its position is fixed, whichever rows share the
step, and whatever of it comes from the cache: a row that starts behind the position has to read it.
"""

from collections import Counter
from dataclasses import dataclass
from random import Random

from pagewire.internal.v1.worker_pb2 import StepPlan
from pagewire.ipc.columns import unpack_u32


@dataclass(frozen=True)
class Poison:
    """What is wrong with a request."""

    position: int  # of the fatal token, in prompt and output
    probability: float  # of a death whenever it is computed
    victim: str  # "worker" or "core"


class Poisons:
    """Those of a workload, and the rows that they have in one life of a worker."""

    def __init__(self, by_seed: dict[int, Poison], random: Random, deaths: Counter[int]) -> None:
        """by_seed: the requests' seeds. deaths: a count for each of them, over all lives."""
        self._by_seed, self._random, self._deaths = by_seed, random, deaths
        self._rows: dict[int, int] = {}  # the seed of each that is poisoned

    def strike(self, plan: StepPlan) -> str:
        """Returns what this plan kills, "worker" or "core"; empty: nothing."""
        for row in unpack_u32(plan.removed_rows):
            self._rows.pop(row, None)
        new = set[int]()
        for begun in plan.new_rows:
            if begun.sampling.seed in self._by_seed:
                self._rows[begun.row] = begun.sampling.seed
                new.add(begun.row)
        for fork in plan.forks:
            if fork.source_row in self._rows:
                self._rows[fork.row] = self._rows[fork.source_row]
        for row, start, count in zip(*map(unpack_u32, (plan.rows, plan.starts, plan.counts)), strict=True):
            seed = self._rows.get(row)
            if seed is not None and self._strikes(self._by_seed[seed], start, count, row in new):
                self._deaths[seed] += 1
                return self._by_seed[seed].victim
        return ""

    def abandon(self) -> None:
        """All rows are removed: their core has died."""
        self._rows.clear()

    def _strikes(self, poison: Poison, start: int, count: int, is_new: bool) -> bool:
        meets = poison.position < start + count and (is_new or poison.position >= start)
        return meets and self._random.random() < poison.probability
