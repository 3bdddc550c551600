"""Takes the result of a step: tokens, vectors and candidates go to the sequences that the plan sampled.

Sequences that have ended since the plan was made are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from engine_core.request import NO_TOKEN, FinishReason, Request, Sequence, Status, take_one_each
from engine_core.scheduler.outputs.outputs import NO_DRAFT, RowDraft
from engine_core.scheduler.outputs.prompt_logprobs import PromptRows
from engine_core.scheduler.request_ends import FaultIsolation, RequestEnds
from engine_core.scheduler.states.sequence_group import split_candidates
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import Plan
from engine_core.step.result import Result

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A plan that the worker executes, and what the scheduler needs to take its result."""

    plan: Plan
    sampling: list[Sequence]  # in the order of its sample_rows
    num_ended: int  # SequenceStates.num_ended when it was made
    prompts: PromptRows  # whose log-probabilities the result may have


class StepResults:
    """Takes results, and ends the sequences that are complete with them."""

    def __init__(self, states: SequenceStates, ends: RequestEnds, faults: FaultIsolation) -> None:
        self._states, self._ends, self._faults = states, ends, faults

    def abort_without_token(self, step: InFlightStep, result: Result) -> tuple[list[Request], set[Request]]:
        """Aborts and returns the requests of sequences that got NO_TOKEN; and these and the ended ones.

        The fault may lie in their blocks, in blocks of sequences that have ended, and in copies of either:
        all are forgotten, unless the worker says that it lies elsewhere (row_errors).
        """
        if NO_TOKEN not in result.token_ids:
            return [], set()
        entries = {entry: step.sampling[entry] for entry in result.entries_with(NO_TOKEN)}
        live = {entry: each for entry, each in entries.items() if each.status is not Status.ENDED}
        failed = {sequence.request: None for sequence in live.values()}
        for entry, sequence in live.items():
            sequence.request.row_error = result.row_errors.get(entry, "")
        broken = [sequence for entry, sequence in entries.items() if entry not in result.row_errors]
        if broken:
            for sequence in broken + [sibling for request in failed for sibling in request.sequences]:
                self._states.prefix_cache.distrust(sequence)
            self._states.swap.drop_all()
        for request in failed:
            self._ends.abort(request)
        return list(failed), {sequence.request for sequence in entries.values()}

    def take(self, step: InFlightStep, result: Result) -> None:
        """Takes the tokens of a plan, with their log-probabilities."""
        if planned := step.plan.sample_counts:
            drafts = result.row_drafts() or [NO_DRAFT] * len(planned)
            several = list(zip(result.tokens_by_row(), planned, drafts, strict=True))
            first = self._take_several(*self._live_samples(step, result, several))
        else:
            first = self._take_one_each(*self._live_samples(step, result, result.token_ids))
        if result.logprobs is not None:
            self._states.outputs.add_scores(first, step.sampling, result.sample_counts, result.logprobs)

    def _live_samples(
        self, step: InFlightStep, result: Result, samples: list[T]
    ) -> tuple[list[Sequence], list[T]]:
        """The sequences that sample for themselves and have not ended, with their samples.

        samples: of the plan's sample_rows, in order.
        """
        sequences, samples = _take_vectors(step.sampling, samples, result, self._states)
        if result.beam_token_ids:
            sequences, samples = self._advance_groups(sequences, samples, result)
        if self._states.num_ended != step.num_ended:
            pairs = zip(sequences, samples, strict=True)
            live = [pair for pair in pairs if pair[0].status is not Status.ENDED]
            sequences, samples = [pair[0] for pair in live], [pair[1] for pair in live]
        return sequences, samples

    def _advance_groups(
        self, sampling: list[Sequence], samples: list[T], result: Result
    ) -> tuple[list[Sequence], list[T]]:
        """Groups choose among their candidates; returns the sequences that sample, with their samples."""
        sequences, samples, candidates = split_candidates(sampling, samples, result)
        for request, of_request in candidates.items():
            is_over = False
            with self._faults.of(request):
                is_over = self._states.groups[request].take(of_request, self._states.tables)
            if is_over:
                self._ends.finish(request, FinishReason.NONE)
        return sequences, samples

    def _take_one_each(self, sequences: list[Sequence], token_ids: list[int]) -> int:
        """Takes one token for each sequence; returns the index of the first output entry."""
        first = self._states.outputs.add_tokens(sequences, token_ids)
        for index in take_one_each(sequences, token_ids):
            self._end_if_finished(sequences[index], first + index)
        return first

    def _take_several(self, sequences: list[Sequence], samples: list[tuple[list[int], int, RowDraft]]) -> int:
        """Takes the tokens of each sequence, of which so many were planned, and its draft; returns the index
        of the first output entry."""
        first = len(self._states.outputs.sequences)
        for sequence, (token_ids, num_planned, draft) in zip(sequences, samples, strict=True):
            position, taken = len(sequence.output), 0
            with self._faults.of(sequence.request):
                taken = sequence.take(token_ids, num_planned)
            entry = self._states.outputs.add_run(sequence, position, draft)
            if taken:
                self._end_if_finished(sequence, entry)
        return first

    def _end_if_finished(self, sequence: Sequence, entry: int) -> None:
        """Ends a sequence if its last token ends it. entry: of that token, in the outputs."""
        if sequence.status is Status.ENDED:  # together with a sibling, by a fault
            return
        reason, matched = FinishReason.NONE, 0
        with self._faults.of(sequence.request):
            reason, matched = sequence.finish()
        if reason is not FinishReason.NONE:
            self._states.outputs.finishes[entry] = reason, matched
            self._states.end(sequence)


def _take_vectors(
    sampling: list[Sequence], samples: list[T], result: Result, states: SequenceStates
) -> tuple[list[Sequence], list[T]]:
    """Ends the sequences [A] of a plan that have a vector, in place of a token; returns the others with their
    samples.

    A vector of a sequence that has ended since the plan was made is dropped.
    """
    if not result.vectors:
        return sampling, samples
    for entry, values in result.vectors.items():
        sequence = sampling[entry]
        if sequence.status is not Status.ENDED:
            states.outputs.add_vector(sequence, values)
            states.end(sequence)
    pairs = zip(sampling, samples, strict=True)
    others = [pair for pair in pairs if not pair[0].request.pools]
    return [pair[0] for pair in others], [pair[1] for pair in others]
