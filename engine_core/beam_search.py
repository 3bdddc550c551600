"""Beam search: which continuations of a prompt to follow, and when to stop.

Pure: log-probabilities in, choices out; sequences.py deals with rows and blocks. The results are those of
transformers' beam search (GenerationMixin._beam_search), computed as follows:

- The score of a beam is the sum of its tokens' log-probabilities, as the worker gives them (penalties
  and masks included). A candidate is a beam extended by one token. Candidates are taken by score, the best
  first; of equals, that of the better beam, then the lower token.
- A candidate ends by a stop token or by its length. If it is among the best `width` of all, it becomes a
  hypothesis, with the score / length ** length_penalty; the best `width` hypotheses are kept, of equals the
  earlier one. If it is not among them, it is dropped.
- The best `width` candidates that do not end are the next beams.
- The search is over when there are `width` hypotheses and either early_stopping is set, or the best beam,
  if it ended here, would not be better than the worst hypothesis; and when no candidate continues.

Scores are float64 sums of float32 log-probabilities; transformers adds in float32. The two differ only
where candidates are as close as rounding errors.

Where masks leave fewer candidates than beams, beams are repeated with a score that never displaces another
beam (lower by REPEATED), so that there are always `width` beams and `num_results` results. (transformers
starts from such beams, and cannot tell their scores apart in float32.)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import cycle, islice
from math import inf
from typing import NamedTuple

from engine_core.step.result import TokenLogprobs

REPEATED = 1e9


@dataclass(frozen=True, slots=True)
class BeamParameters:
    """Parameters of a request's search, and the conditions that end its sequences."""

    width: int  # beams
    num_results: int  # at most width
    length_penalty: float
    early_stopping: bool
    stops: frozenset[int]  # tokens that end a sequence, at positions from min_tokens on
    min_tokens: int
    max_output: int  # tokens, at least 1
    vocab_size: int

    @property
    def num_candidates(self) -> int:
        """Tokens that the worker proposes for each beam: enough to contain its share of the best `width`
        candidates, and of the best `width` that do not end."""
        return min(self.width + len(self.stops), self.vocab_size)


class Beam(NamedTuple):
    """A continuation that is followed. Hypotheses and sequences share its output: it never changes."""

    output: array[int]
    score: float


class Hypothesis(NamedTuple):
    """A continuation that has ended."""

    output: array[int]
    score: float  # normalized by the length


class Candidate(NamedTuple):
    """A beam extended by one token; the smallest is the best."""

    cost: float  # -score
    parent: int  # index of the beam
    rank: int  # among the beam's candidates
    token: int


class BeamSearch:
    """The search of one request: call advance() with the candidates of the beams until `done`."""

    def __init__(self, parameters: BeamParameters) -> None:
        self.parameters = parameters
        self.done = False
        self.beams = [Beam(array("I"), 0.0)]  # at first one: the prompt
        self.parents: list[int] = []  # of `beams`: indexes of the beams that they continue
        self._hypotheses: list[Hypothesis] = []  # the best first

    @property
    def length(self) -> int:
        """Output tokens of each beam."""
        return len(self.beams[0].output)

    def advance(self, candidates: Sequence[TokenLogprobs]) -> list[int]:
        """Extends the beams by one token. candidates: of each beam.

        Returns the parents of the new beams as indexes of the old ones; nothing when the search is over.
        """
        parents = self.beams
        if not self.length:  # one row proposes for all
            candidates = [candidates[0]] * self.parameters.width
            parents = parents + [Beam(parents[0].output, -REPEATED)] * (self.parameters.width - 1)
        ended, alive = self._sort_out(parents, candidates)
        length = self.length + 1
        self._hypotheses += [
            Hypothesis(_extended(parents, candidate), -candidate.cost / self._norm(length))
            for candidate in ended
        ]
        self._hypotheses.sort(key=_worst_last)
        del self._hypotheses[self.parameters.width :]
        self.done = not alive or self._cannot_improve(-alive[0].cost / self._norm(length))
        if self.done:
            return []
        last = len(self.beams) - 1
        self.beams = [Beam(_extended(parents, candidate), -candidate.cost) for candidate in alive]
        self.parents = [min(candidate.parent, last) for candidate in alive]
        return self.parents

    def results(self) -> list[Hypothesis]:
        """The best hypotheses, best first. Before the search is over, beams count as if they ended now."""
        hypotheses = self._hypotheses
        if not self.done:
            beams = self.beams if self.length else self.beams * self.parameters.width
            norm = self._norm(self.length) if self.length else 1.0
            hypotheses = hypotheses + [Hypothesis(beam.output, beam.score / norm) for beam in beams]
            hypotheses.sort(key=_worst_last)
        return hypotheses[: self.parameters.num_results]

    def _sort_out(
        self, parents: list[Beam], candidates: Sequence[TokenLogprobs]
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Returns the candidates that become hypotheses, and those that continue (`width`, or none)."""
        parameters, length = self.parameters, self.length + 1
        stops = parameters.stops if length > parameters.min_tokens else frozenset[int]()
        ended: list[Candidate] = []
        alive: list[Candidate] = []
        for rank, candidate in enumerate(_by_score(parents, candidates)):
            if length < parameters.max_output and candidate.token not in stops:
                alive.append(candidate)
                if len(alive) == parameters.width:
                    break
            elif rank < parameters.width:
                ended.append(candidate)
        again = islice(cycle(alive), parameters.width - len(alive))
        alive += [candidate._replace(cost=candidate.cost + REPEATED) for candidate in again]
        return ended, alive

    def _cannot_improve(self, best: float) -> bool:
        if len(self._hypotheses) < self.parameters.width:
            return False
        return self.parameters.early_stopping or best <= self._hypotheses[-1].score

    def _norm(self, length: int) -> float:
        return float(length**self.parameters.length_penalty)


def _by_score(parents: list[Beam], candidates: Sequence[TokenLogprobs]) -> Iterator[Candidate]:
    """Yields all candidates, the best first; makes as many as the caller takes, and one more per beam."""
    return merge(*map(_continuations, range(len(parents)), parents, candidates))


def _continuations(index: int, beam: Beam, candidates: TokenLogprobs) -> Iterator[Candidate]:
    """Yields the candidates of one beam, without masked tokens."""
    for rank, (token, logprob) in enumerate(candidates):
        if logprob == -inf:
            return
        yield Candidate(-(beam.score + logprob), index, rank, token)


def _worst_last(hypothesis: Hypothesis) -> float:
    return -hypothesis.score


def _extended(parents: list[Beam], candidate: Candidate) -> array[int]:
    return parents[candidate.parent].output + array("I", (candidate.token,))
