"""How the sequences of one request depend on each other.

The scheduler asks a request's group; it does not know why a group answers as it does. That of parallel
sampling is SequenceGroup itself; a beam search has a BeamGroup (beam_group.py).

A group has a leader while its other sequences need the leader's prompt or follow it. A follower has a row and
blocks but no place of its own in the scheduler: it enters every plan that its leader enters.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from engine_core.kv_cache.block_tables import BlockTables
from engine_core.request import FinishReason, Request, Sequence, Status
from engine_core.step.plan import Plan
from engine_core.step.result import Result, TokenLogprobs

T = TypeVar("T")


class RowSlots:
    """The worker's rows 0 to num_rows - 1, each free or held by one sequence."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.free = list(range(num_rows - 1, -1, -1))  # a stack: low numbers first
        self._removed: list[int] = []  # since take_removed()

    def take(self) -> int:
        """Returns a free row; the caller has checked that there is one."""
        return self.free.pop()

    def give_back(self, row: int, *, begun: bool) -> None:
        """Frees a row. begun: the worker has it, and must remove it."""
        self.free.append(row)
        if begun:
            self._removed.append(row)

    def begin_again(self, row: int) -> None:
        """Removes a row at the worker that begins again in the next plan; it stays held."""
        self._removed.append(row)

    def take_removed(self) -> list[int]:
        """Rows that the worker is to drop in the next plan, before new ones begin in it."""
        removed, self._removed = self._removed, []
        return removed


class SequenceGroup:
    """The sequences of one request that is in flight: they share a prompt, and are independent behind it."""

    leads_others = False
    """Whether followers may join the plans of a running leader."""
    followers_have_rows = False
    """Whether the worker knows the rows of the followers, and not the leader's alone."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.can_swap = not request.pools  # a worker's row would have lost what it has read for the mean
        """Whether the keys and values of a preempted sequence are worth keeping."""

    @property
    def followers(self) -> list[Sequence]:
        """Sequences that enter the leader's next plan with it."""
        return []

    def fork(self, leader: Sequence, tables: BlockTables) -> list[Sequence]:
        """The leader's prompt is computed: forks the siblings that run by themselves from now on."""
        siblings = list(self.request.forking)
        for sibling in siblings:
            tables.fork(leader, sibling)
        self.request.forking.clear()
        leader.leads = False
        return siblings

    def writers(self, sequence: Sequence) -> Iterable[Sequence]:
        """Sequences that write a token when a running sequence advances."""
        return (sequence,)

    def reserve(self, sequence: Sequence, tables: BlockTables, plan: Plan) -> bool:
        """Makes the slots of all writers() writable; see BlockTables.reserve()."""
        return tables.reserve(sequence, sequence.num_tokens, plan)

    def join(self, leader: Sequence, plan: Plan, rows: RowSlots) -> list[Sequence]:
        """Returns the followers that compute in this plan, after telling the worker about them."""
        return []

    def take(self, candidates: Mapping[Sequence, TokenLogprobs], tables: BlockTables) -> bool:
        """Chooses among the candidates that the workers' rows propose; returns whether the request ends."""
        raise AssertionError("the rows of parallel sampling sample for themselves")

    def num_tokens_lost(self, sequence: Sequence, tables: BlockTables) -> int:
        """Tokens to compute again if a running sequence is preempted."""
        return tables.num_tokens_lost(sequence)

    def preempted(self) -> None:
        """A sequence of the group has lost its row and blocks."""

    def ended_by(self, indexes: Collection[int]) -> Collection[int]:
        """Indexes of the sequences that end when the client gives up these; empty `indexes`: all."""
        return indexes or range(len(self.request.sequences))

    def results(self) -> list[array[int]] | None:
        """Outputs to send when the request ends, the best first; None: each sequence sends its own."""
        return None

    def is_finished(self) -> bool:
        """Whether the request has come to its end by itself."""
        return all(sequence.finish()[0] is not FinishReason.NONE for sequence in self.request.sequences)

    def num_pending_plans(self, num_plans: int) -> int:
        """Of the plans in flight that sample for a sequence of it, those whose result it will take."""
        return num_plans

    def clear(self) -> None:
        """Drops references to sequences; the request has ended."""

    def check_invariants(self) -> None:
        """Raises InvariantError when the group's state contradicts its sequences."""


def split_candidates(
    sampling: list[Sequence], samples: list[T], result: Result
) -> tuple[list[Sequence], list[T], dict[Request, dict[Sequence, TokenLogprobs]]]:
    """Divides a result into samples and candidates.

    Returns the sequences whose rows sample, with their samples; and the candidates of the others, by request,
    without requests that have ended.
    """
    sequences: list[Sequence] = []
    kept: list[T] = []
    candidates: dict[Request, dict[Sequence, TokenLogprobs]] = {}
    end = 0
    for sequence, sample in zip(sampling, samples, strict=True):
        count = sequence.request.num_candidates
        if not count:
            sequences.append(sequence)
            kept.append(sample)
            continue
        start, end = end, end + count
        if sequence.status is not Status.ENDED:
            pairs = zip(result.beam_token_ids[start:end], result.beam_logprobs[start:end], strict=True)
            candidates.setdefault(sequence.request, {})[sequence] = list(pairs)
    assert end == len(result.beam_token_ids), "each row proposes as many tokens as it was told to"
    return sequences, kept, candidates
