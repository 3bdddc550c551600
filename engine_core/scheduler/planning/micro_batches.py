"""Micro-batches: the stages of a worker compute at the same time, each a plan of other rows.

A token needs all stages, one after the other, so that a row that decodes is in one plan at a time, and with
one plan of all rows all stages but one wait. So rows that decode are dealt to as many groups as there are
stages, of sizes that differ by one at most, and plans have one group's rows after the other's. A prompt that
takes more than one step is in every plan: the next part of it needs no token.

    stage 0   |= a1 =|= b1 =|= a2 =|= b2 =|           a, b: groups; 1, 2: their plans
    stage 1          |= a1 =|= b1 =|= a2 =|= b2 =|

What is computed beside a row changes none of its tokens, so that any dealing is right: it decides how long
stages wait.
"""

import itertools
from collections.abc import Sequence as Many

from engine_core.request import Sequence
from engine_core.step.plan import Plan


class MicroBatches:
    """Deals running sequences to the plans of a worker with stages."""

    def __init__(self, stages: int, least_rows: int) -> None:
        """stages: that compute at the same time; 1: all rows are in every plan. least_rows: of a group; a
        step of fewer takes as long."""
        self._stages, self._least_rows = stages, least_rows
        self.width = 1
        """Plans that the worker can compute at the same time, as they are dealt now."""
        self.ends_round = True
        """Whether each row that decodes has been in a plan since this was so the last time."""
        self._turn = 0  # the group of the last plan
        self._together = True

    def due(self, running: list[Sequence], *, together: bool) -> list[Sequence]:
        """Returns the running sequences that may be in the next plan, in order. together: all of them."""
        searches = any(each.request.num_candidates for each in running)
        self.width, self._together = 1, together or searches or self._stages == 1
        self.ends_round = True
        if self._together:
            return running
        decoding = [each for each in running if each.is_decoding]
        count = min(self._stages, len(decoding) // self._least_rows)
        if count <= 1:
            return running
        self.width = count
        moved = _deal(decoding, count)
        turns = {each.micro_batch for each in decoding if each not in moved}
        last = self._turn
        self._turn = next(turn % count for turn in itertools.count(self._turn + 1) if turn % count in turns)
        self.ends_round = self._turn <= last
        absent = {each for each in decoding if each.micro_batch != self._turn or each in moved}
        return [each for each in running if each not in absent]

    def mark(self, plan: Plan) -> None:
        """Says of a plan, whose columns are complete, whether others may begin before it ends."""
        is_cut = len(plan.sample_rows) < len(plan.rows)
        if is_cut and not plan.sample_rows and not self._together:  # else the next one waits for these
            self.width = self._stages
        computes_prompts = is_cut or sum(plan.counts) > len(plan.rows)
        plan.micro_batch = not (self._together or plan.sample_counts) and (self.width > 1 or computes_prompts)


def _deal(decoding: Many[Sequence], count: int) -> set[Sequence]:
    """Deals sequences to so many groups; the first ones stay in theirs. Returns those that change, which the
    plans before may still have: they wait for their group's next turn."""
    least, larger = divmod(len(decoding), count)
    sizes, moved = [0] * count, []
    for sequence in decoding:
        group = sequence.micro_batch = sequence.micro_batch % count
        if sizes[group] < least + (larger > 0):
            larger -= sizes[group] == least
            sizes[group] += 1
        else:
            moved.append(sequence)
    for sequence in moved:
        sequence.micro_batch = sizes.index(min(sizes))
        sizes[sequence.micro_batch] += 1
    return set(moved)
