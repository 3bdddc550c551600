"""Log-probabilities without a model: a law of ranks, and a hash that says who has which rank.

    context    H_k = sum over i < k of mix(token_i + G * (i + 1))        of the tokens before position k
    first      f = mix(H_k) mod V                                      the likeliest token at position k
    rank(t)    (t - f) mod V + 1
    log p(t)   -log(rank(t)) - log(1 + 1/2 + ... + 1/V)                Zipf's law: it sums to 1

`mix`, G and the arithmetic are those of worker.simulated.tokens. The values are a function of the tokens
before a position and of nothing else, as a model's are: scoring what was generated gives what generating
it gave, however the prompt was cut, and two prompts agree as far as they are equal. They know nothing of
how tokens are chosen, so that a greedy token need not have rank 1.
"""

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.sampling.logprobs.columns import ScoreTable, to_columns
from worker.sampling.logprobs.requests import Candidates, LogprobWishes, PromptPart
from worker.simulated.tokens import GAMMA, Hashes, mix, mix_all


def logprob_reference(context: list[int], token: int, vocab_size: int) -> tuple[float, int]:
    """The formula, for one token: log-probability and rank."""
    first = mix(sum(mix(before + GAMMA * (i + 1)) for i, before in enumerate(context))) % vocab_size
    rank = (token - first) % vocab_size + 1
    return float(-np.log(rank) - np.log(sum(1 / r for r in range(1, vocab_size + 1)))), rank


class SimulatedScores:
    """Scores what the rows that want it sample, and their prompts. A worker.step.plan_reader.RowFeature."""

    def __init__(self, vocab_size: int) -> None:
        ranks = np.arange(1, vocab_size + 1)
        self._logprobs = np.append(0.0, -np.log(ranks) - np.log((1 / ranks).sum()))  # [V + 1] by rank
        self._wishes = LogprobWishes(vocab_size)
        self._contexts: dict[int, int] = {}  # row that wants -> H of all its tokens
        self._vocab_size = vocab_size

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        self._wishes.add_row(row, new, prompt_ids, output_ids)
        if row in self._wishes.sampled:
            self._contexts[row] = int(_contexts(np.array(prompt_ids + output_ids))[-1])

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another."""
        self._wishes.fork_row(row, source_row, sequence_index)
        if source_row in self._contexts:
            self._contexts[row] = self._contexts[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._wishes.remove_row(row)
        self._contexts.pop(row, None)

    def prompt_parts(self, rows: Integers, starts: Integers, counts: Integers) -> list[PromptPart]:
        """See LogprobWishes."""
        return self._wishes.prompt_parts(rows, starts, counts)

    def prompts(self, parts: list[PromptPart], token_ids: Integers) -> Iterator[worker_pb2.RowPromptLogprobs]:
        """token_ids: the row table's."""
        for part in parts:
            tokens = token_ids[part.row, : part.end]
            contexts = _contexts(tokens)[part.start : part.end]
            table = self._score(contexts, tokens[part.start :], part.candidates)
            yield worker_pb2.RowPromptLogprobs(row=part.row, start=part.start, columns=to_columns([table]))

    def sampled(
        self, rows: Integers, num_tokens: Integers, tokens: Integers
    ) -> engine_pb2.LogprobColumns | None:
        """What the rows sampled, all [A]; num_tokens: what they had before. None: nobody wants to know."""
        wishes = self._wishes.sampled
        if not wishes:
            return None
        everybody = zip(rows.tolist(), num_tokens.tolist(), tokens.tolist(), strict=True)
        wanted = [entry for entry in everybody if entry[0] in wishes]
        tables = []
        for wish, group in groupby(wanted, lambda entry: wishes[entry[0]]):
            entries = list(group)
            contexts = np.array([self._contexts[row] for row, _, _ in entries], np.uint64)
            tables.append(self._score(contexts, np.array([token for _, _, token in entries]), wish))
        for row, position, token in wanted:
            self._contexts[row] += mix(token + GAMMA * (position + 1))
            self._contexts[row] &= (1 << 64) - 1
        return to_columns(tables) if wanted else None

    def _score(self, contexts: Hashes, tokens: Integers, wish: Candidates) -> ScoreTable:
        """contexts, tokens: [M]."""
        size = self._vocab_size
        first = (mix_all(contexts) % np.uint64(size)).astype(np.int64)[:, None]
        count = wish.count(size)
        ids = (first + np.arange(count)) % size
        if wish.all or wish.token_ids:
            ids = np.tile(wish.token_ids or np.arange(size), (len(tokens), 1))
        ranks, own = (ids - first) % size + 1, (tokens - first[:, 0]) % size + 1
        counts = np.full(len(tokens), count)
        return ScoreTable(self._logprobs[own], own, counts, ids, self._logprobs[ranks], ranks)


def _contexts(tokens: Integers) -> Hashes:
    """[N] -> [N + 1] H_0 to H_N."""
    places = np.uint64(GAMMA) * np.arange(1, len(tokens) + 1, dtype=np.uint64)
    return np.append(np.uint64(0), np.cumsum(mix_all(tokens.astype(np.uint64) + places), dtype=np.uint64))
