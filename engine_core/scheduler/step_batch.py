"""Who computes in a step, from where, and within which budget: the scheduler's working set."""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from engine_core.request import Sequence
from engine_core.step.plan import Plan

_NUMBERS: list[int] = []


def first_numbers(count: int) -> list[int]:
    """0, 1 ... count - 1. A copy of one list costs a tenth of making so many integers."""
    if count > len(_NUMBERS):
        _NUMBERS[:] = range(2 * count)
    return _NUMBERS[:count]


@dataclass(slots=True)
class Batch:
    """Sequences in the order in which they were given their share of the budget (tokens)."""

    budget: int
    sequences: list[Sequence] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # position of the first token to compute
    counts: list[int] = field(default_factory=list)  # tokens to compute
    is_cut: bool = False  # the last entry does not reach num_tokens
    forks: list[tuple[Sequence, int]] = field(default_factory=list)  # and the entry they sample from

    def add_decoding(self, sequences: Many[Sequence]) -> None:
        """Each of the sequences computes one token, and has no more to compute."""
        assert len(sequences) <= self.budget, "there are no more rows than tokens in the budget"
        self.budget -= len(sequences)
        self.starts += [sequence.num_computed_tokens for sequence in sequences]
        self.counts += [1] * len(sequences)
        self.sequences += sequences
        for sequence in sequences:
            sequence.num_computed_tokens += 1

    def add(self, sequence: Sequence) -> None:
        """The sequence computes what it has to, or as much of it as the budget has left."""
        start, end = sequence.num_computed_tokens, sequence.num_tokens
        if end - start > self.budget:
            assert self.budget > 0, "there are no more rows than tokens in the budget"
            end = start + self.budget
            self.is_cut = True
        self.budget -= end - start
        sequence.num_computed_tokens = end
        self.sequences.append(sequence)
        self.starts.append(start)
        self.counts.append(end - start)

    def add_fork(self, sequence: Sequence) -> None:
        """The sequence computes nothing, but samples from the last one that was added."""
        self.forks.append((sequence, len(self.sequences) - 1))

    def write_columns(self, plan: Plan) -> list[Sequence]:
        """Puts the batch into the plan; the sequences that get a token sampled, in order.

        From here on they count that token.
        """
        plan.rows = [sequence.row for sequence in self.sequences]
        plan.starts, plan.counts = self.starts, self.counts
        plan.sample_rows, sampling = plan.rows.copy(), self.sequences.copy()
        plan.sample_sources = first_numbers(len(plan.rows))
        if self.is_cut:
            del plan.sample_rows[-1], sampling[-1], plan.sample_sources[-1]
        for sequence, entry in self.forks:
            plan.sample_rows.append(sequence.row)
            plan.sample_sources.append(entry)
            sampling.append(sequence)
        for sequence in sampling:
            sequence.num_tokens += 1
        return sampling
