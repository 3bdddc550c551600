"""Prompts that are computed ahead of a long one that runs.

A prompt that is longer than the rest of a step's budget takes all of it, step after step, and whatever waits
would get its first token when it is over. So the first of the queue, if it is of another tenant, may take the
share of that budget to which the tenants that wait are entitled, and if it is of a better class, almost all
of it. Only prompts that fit into this share overtake: there is one unfinished prompt at a time.
"""

from __future__ import annotations

from engine_core.kv_cache.host_swap import SwapSpace
from engine_core.queue.base import WaitingQueue
from engine_core.request import Sequence


class Overtaking:
    """How much of a plan's budget goes to others before an unfinished prompt gets the rest."""

    def __init__(self, waiting: WaitingQueue, swap: SwapSpace, block_size: int) -> None:
        self._waiting, self._swap, self._block_size = waiting, swap, block_size
        self.num_overtakers = 0
        """Sequences that began ahead of a longer prompt, since the start."""

    def room(self, prompt: Sequence, budget: int) -> int:
        """Returns how many tokens of the budget are for others than a running prompt, which gets the rest:
        at least one token, and all where it is not cut."""
        if prompt.num_new_tokens <= budget or not len(self._waiting):
            return 0
        return min(int(budget * self._waiting.claim(prompt)), budget - 1)

    def cost(self, sequence: Sequence, cached: list[int]) -> int:
        """Returns the tokens that a waiting sequence computes when it is admitted. cached: its blocks."""
        found = max(len(cached) * self._block_size, self._swap.num_tokens(sequence))
        return max(sequence.num_tokens - found, 1)
