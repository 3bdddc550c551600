"""The working set of one plan: which sequences compute, from where, and within which budget."""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from engine_core.request import Sequence, plan_one_each
from engine_core.step.plan import Plan

_NUMBERS: list[int] = []


def first_numbers(count: int) -> list[int]:
    """0, 1 ... count - 1. A copy of one list costs a tenth of making so many integers."""
    if count > len(_NUMBERS):
        _NUMBERS[:] = range(2 * count)
    return _NUMBERS[:count]


@dataclass(slots=True)
class Batch:
    """Sequences in the order in which they receive their share of the budget (tokens)."""

    budget: int
    sequences: list[Sequence] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # position of the first token to compute
    counts: list[int] = field(default_factory=list)  # tokens to compute
    is_cut: bool = False  # the last entry does not reach num_tokens
    forks: list[tuple[Sequence, int]] = field(default_factory=list)  # and the entry they sample from
    num_planned: int = 0  # leading sequences whose samples are counted already
    sample_counts: list[int] = field(default_factory=list)  # of those; empty: 1 each
    num_vector_values: int = 0  # elements of the vectors of sequences that came by add()

    @property
    def last_decodes(self) -> bool:
        """Whether the last sequence came by add_decoding() or add_sampling()."""
        return self.num_planned == len(self.sequences)

    def add_decoding(self, sequences: Many[Sequence]) -> None:
        """Each of the sequences computes its last token and samples one."""
        assert len(sequences) <= self.budget, "there are no more rows than tokens in the budget"
        self.budget -= len(sequences)
        self.starts += [sequence.num_computed_tokens for sequence in sequences]
        self.counts += [1] * len(sequences)
        self.sequences += sequences
        self.num_planned = len(self.sequences)
        plan_one_each(sequences)

    def add_sampling(self, sequence: Sequence, count: int) -> None:
        """As add_decoding() for one sequence, which samples up to `count` tokens and computes as many."""
        self.starts.append(sequence.num_computed_tokens)
        sequence.set_computed(sequence.num_tokens)
        sequence.plan_samples(count)
        self.budget -= count
        self.counts.append(count)
        self.sequences.append(sequence)
        self.sample_counts.append(count)
        self.num_planned += 1

    def end_of(self, sequence: Sequence) -> int:
        """Returns how many tokens of a sequence can be computed when add() adds it: all, or as many as the
        budget has left."""
        return min(sequence.num_tokens, sequence.num_computed_tokens + self.budget)

    def add(self, sequence: Sequence, end: int) -> None:
        """The sequence computes its new tokens before position `end`, which is at most end_of() it. If these
        are not all, nothing is left of the budget."""
        start = sequence.num_computed_tokens
        assert start < end, "there are no more rows than tokens in the budget"
        self.is_cut = end < sequence.num_tokens
        self.budget = 0 if self.is_cut else self.budget - (end - start)
        self.num_vector_values += sequence.request.num_vector_values
        sequence.set_computed(end)
        self.sequences.append(sequence)
        self.starts.append(start)
        self.counts.append(end - start)

    def add_fork(self, sequence: Sequence) -> None:
        """The sequence computes nothing and samples from the last entry."""
        self.forks.append((sequence, len(self.sequences) - 1))

    def write_columns(self, plan: Plan) -> list[Sequence]:
        """Writes the batch into the plan and counts the tokens that it samples.

        Returns the sequences that sample, in the order of the plan's sample_rows.
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
        for sequence in sampling[self.num_planned :]:
            sequence.plan_samples(1)
        if any(count > 1 for count in self.sample_counts):
            plan.sample_counts = self.sample_counts + [1] * (len(sampling) - len(self.sample_counts))
        return sampling
