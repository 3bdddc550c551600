"""Whether drafts pay: what steps with and without them take, and what sequences have gained by them.

A step with drafts computes more tokens, and the next one is not planned meanwhile. What that costs depends on
the model and the machine, so it is measured: seconds from the end of one step to the end of the next, with
drafts and without, by the number of rows. What it gains depends on the text: each sequence has its own yield,
the accepted tokens of a draft.

    (rows + yields) / seconds with drafts  >  rows / seconds without

Times come with results and are recorded with them, so that a replay decides the same.
"""

from collections import Counter

from engine_core.request import Sequence
from engine_core.step.plan import Plan
from engine_core.step.result import Result

MARGIN = 1.02
"""How much faster drafts must be."""
FIRST_YIELD = 1.0
"""Of the first sequence. Later ones begin with what others have lately, or with this if that is less."""
_NEW_TYPICAL = 0.2
"""Weight of the latest draft in the yield of others."""
_NEW_YIELD = 0.15
"""Weight of the latest draft in a sequence's yield: one of four tokens that are right with a probability of
0.8 gives none in every fifth step, and two or three in a row must not end the drafts."""
_RECOVERY = 1 / 512
"""What the yield gains with a step in which a draft was not tried: it is tried again now and then."""
_NEW_PERIOD = 0.2
"""Weight of the latest step in the seconds of its kind."""
_FIRST_STEPS = 4
"""Of a kind, of which the shortest counts: the first ones prepare what later ones find prepared."""
_OUTLIER = 4.0
"""A step counts as so many times the usual seconds at most."""


class DraftGain:
    """Measures steps and drafts."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, bool], float] = {}  # by rows (bit length), and with drafts or without
        self._steps: Counter[tuple[int, bool]] = Counter()  # of each kind
        self._typical = FIRST_YIELD
        self._ended_ns = 0  # the last step, on the worker's clock; 0: the worker was idle since

    def idle(self) -> None:
        """There is nothing to do: the time until the next step does not count."""
        self._ended_ns = 0

    def step_done(self, plan: Plan, result: Result, was_awaited: bool) -> None:
        """Takes the times of a step. Steps that compute parts of prompts, by the model or a draft
        model, are not compared.

        was_awaited: its plan was made only after the result before it. That takes longer, as a step without
        drafts does not where nothing is drafted; so such a step counts until there are others.
        """
        began, self._ended_ns = self._ended_ns, result.started_ns + 1000 * result.duration_us
        only_decodes = len(plan.sample_rows) == len(plan.rows)
        only_decodes &= sum(plan.counts) == len(plan.rows) + plan.num_extra_samples
        if not began or not result.duration_us or not only_decodes or result.draft_prefill:
            return
        kind = len(plan.rows).bit_length(), any(result.draft_counts)
        if was_awaited and not kind[1] and self._steps[kind] >= _FIRST_STEPS:
            return
        seconds = (self._ended_ns - began) / 1e9
        usual = self._seconds.setdefault(kind, seconds)
        self._steps[kind] += 1
        if self._steps[kind] <= _FIRST_STEPS:
            self._seconds[kind] = min(seconds, usual)
        else:
            self._seconds[kind] += _NEW_PERIOD * (min(seconds, _OUTLIER * usual) - usual)

    def pays(self, num_rows: int, drafting: list[Sequence]) -> bool:
        """Whether drafts for these of num_rows sequences make a step worth its time; True: not known yet."""
        size = num_rows.bit_length()
        drafts, plain = self._seconds.get((size, True)), self._seconds.get((size, False))
        if drafts is None or plain is None or self._steps[size, True] < _FIRST_STEPS:
            return True
        expected = sum(map(self._yield_of, drafting))
        return (num_rows + expected) * plain > MARGIN * num_rows * drafts

    def judge(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Takes what a step has drafted for a sequence for which the worker has drafts."""
        known = self._yield_of(sequence)
        if num_drafted:
            sequence.draft_yield = known + _NEW_YIELD * (num_accepted - known)
            self._typical += _NEW_TYPICAL * (num_accepted - self._typical)
        else:
            sequence.draft_yield = max(known, min(FIRST_YIELD, known + _RECOVERY))

    def _yield_of(self, sequence: Sequence) -> float:
        known = sequence.draft_yield
        return max(FIRST_YIELD, self._typical) if known is None else known
