"""Beam search: which continuations of a prompt are followed, and when no better one can come.

Pure: log-probabilities in, choices out; rows and blocks are beam_rows.py's affair. The results are those
of transformers' beam search (GenerationMixin._beam_search), stated here as they are computed:

- The score of a beam is the sum of its tokens' log-probabilities, as the worker gives them (penalties
  and masks included). A candidate is a beam and a token more. Candidates are taken by score, the best
  first; of equals, that of the better beam, then the lower token.
- A candidate ends by a stop token or by its length. If it is among the best `width` of all, it becomes a
  hypothesis, with the score / length ** length_penalty; the best `width` hypotheses are kept, of equals the
  earlier one. If it is not among them, it is dropped.
- The best `width` candidates that do not end are the next beams.
- The search is over when there are `width` hypotheses and either early_stopping is set, or the best beam,
  if it ended here, would not be better than the worst hypothesis; and when no candidate goes on.

Scores are float64 sums of float32 log-probabilities; transformers adds in float32. So the two can differ
where candidates are as close as rounding errors, and nowhere else.

Where masks leave fewer candidates than beams, beams are repeated at a score that never displaces
anything (REPEATED less), so that there always are `width` of them, and so results for all who wait for one.
(transformers begins with such beams, and cannot tell their scores apart in float32.)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import cycle, islice
from math import inf
from typing import NamedTuple

REPEATED = 1e9


@dataclass(frozen=True, slots=True)
class BeamParameters:
    """What a request says about its search, and when its sequences end."""

    width: int  # beams
    num_results: int  # at most width
    length_penalty: float
    early_stopping: bool
    stops: frozenset[int]  # tokens that end a sequence, at positions from min_tokens on
    min_tokens: int
    max_output: int  # tokens, at least 1
    vocab_size: int

    @property
    def num_offers(self) -> int:
        """Tokens that each beam must offer: among them are its part of the best `width` candidates, and its
        part of the best `width` that go on."""
        return min(self.width + len(self.stops), self.vocab_size)


class Beam(NamedTuple):
    """A continuation that is followed. Nobody changes the output: beams, hypotheses and rows share it."""

    output: array[int]
    score: float


class Hypothesis(NamedTuple):
    """A continuation that has ended."""

    output: array[int]
    score: float  # normalized by the length


class Candidate(NamedTuple):
    """A beam and a token more; the smallest is the best."""

    cost: float  # -score
    parent: int  # index of the beam
    place: int  # among the beam's candidates
    token: int


Offers = Sequence[tuple[int, float]]
"""Tokens with their log-probabilities, the likeliest first, of equals the lower token first."""


class BeamSearch:
    """The search of one request: advance() with what the beams offer until `done`."""

    def __init__(self, parameters: BeamParameters) -> None:
        self.parameters = parameters
        self.done = False
        self.beams = [Beam(array("I"), 0.0)]  # in the beginning one: the prompt
        self.parents: list[int] = []  # of `beams`: indexes of the beams that they continue
        self._hypotheses: list[Hypothesis] = []  # the best first

    @property
    def length(self) -> int:
        """Output tokens of each beam."""
        return len(self.beams[0].output)

    def advance(self, offers: Sequence[Offers]) -> list[int]:
        """One token more. offers: of each of the beams.

        Returns the parents of the new beams as indexes of the old ones; nothing when the search is over.
        """
        parents = self.beams
        if not self.length:  # one row offers for all
            offers = [offers[0]] * self.parameters.width
            parents = parents + [Beam(parents[0].output, -REPEATED)] * (self.parameters.width - 1)
        ended, alive = self._sort_out(parents, offers)
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
        self, parents: list[Beam], offers: Sequence[Offers]
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Of the candidates: those that become hypotheses, and those that go on (`width`, or none)."""
        parameters, length = self.parameters, self.length + 1
        stops = parameters.stops if length > parameters.min_tokens else frozenset[int]()
        ended: list[Candidate] = []
        alive: list[Candidate] = []
        for rank, candidate in enumerate(_by_score(parents, offers)):
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


def _by_score(parents: list[Beam], offers: Sequence[Offers]) -> Iterator[Candidate]:
    """All candidates, the best first; as many are made as the caller takes, and one more of each beam."""
    return merge(*map(_candidates, range(len(parents)), parents, offers))


def _candidates(index: int, beam: Beam, offers: Offers) -> Iterator[Candidate]:
    """Those of one beam. What a mask forbids is none."""
    for place, (token, logprob) in enumerate(offers):
        if logprob == -inf:
            return
        yield Candidate(-(beam.score + logprob), index, place, token)


def _worst_last(hypothesis: Hypothesis) -> float:
    return -hypothesis.score


def _extended(parents: list[Beam], candidate: Candidate) -> array[int]:
    return parents[candidate.parent].output + array("I", (candidate.token,))
