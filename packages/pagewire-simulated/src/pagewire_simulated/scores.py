"""Log-probabilities without a model: a distribution over ranks, and a hash that ranks the tokens.

    context    H_k = sum over i < k of mix(token_i + G * (i + 1))        of the tokens before position k
    first      f = mix(H_k) mod V                                      the most probable token at position k
    rank(t)    (t - f) mod V + 1
    log p(t)   -log(rank(t)) - log(1 + 1/2 + ... + 1/V)                Zipf's law: it sums to 1

`mix`, G and the arithmetic are those of pagewire_simulated.tokens. The values are a function of the tokens
before a position and of nothing else, as a model's are: scoring generated text gives the values that
generating it gave, in any chunks, and two prompts agree as far as they are equal. They are independent of
how tokens are chosen, so a greedy token need not have rank 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire_simulated.tokens import GAMMA, Hashes, mix, mix_all
from worker.sampling.logprobs.messages import LogprobCandidates, PromptPart, ScoreTable, to_columns


def logprob_reference(context: list[int], token: int, vocab_size: int) -> tuple[float, int]:
    """Returns log-probability and rank of one token, by the formula."""
    first = mix(sum(mix(before + GAMMA * (i + 1)) for i, before in enumerate(context))) % vocab_size
    rank = (token - first) % vocab_size + 1
    return float(-np.log(rank) - np.log(sum(1 / r for r in range(1, vocab_size + 1)))), rank


class SimulatedScores:
    """Scores samples and prompts. A worker.step.plan_reader.RowFeature, for the hash of each row's tokens."""

    def __init__(self, vocab_size: int) -> None:
        ranks = np.arange(1, vocab_size + 1)
        self._logprobs = np.append(0.0, -np.log(ranks) - np.log((1 / ranks).sum()))  # [V + 1] by rank
        self._contexts: dict[int, int] = {}  # row that requests log-probabilities -> H of all its tokens
        self._vocab_size = vocab_size

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row."""
        if new.HasField("logprobs"):
            self._contexts[row] = int(contexts_of(np.array(prompt_ids + output_ids))[-1])

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another."""
        if source_row in self._contexts:
            self._contexts[row] = self._contexts[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._contexts.pop(row, None)

    def prompts(
        self, parts: Sequence[PromptPart], token_ids: Integers
    ) -> Iterator[worker_pb2.RowPromptLogprobs]:
        """Scores parts of prompts. token_ids: the row table's."""
        for part in parts:
            tokens = token_ids[part.row, : part.end]
            contexts = contexts_of(tokens)[part.start : part.end]
            table = self._score(contexts, tokens[part.start :], part.candidates)
            yield worker_pb2.RowPromptLogprobs(row=part.row, start=part.start, columns=to_columns([table]))

    def sampled(
        self,
        rows: Integers,
        num_tokens: Integers,
        tokens: Integers,
        requests: Mapping[int, LogprobCandidates],
    ) -> engine_pb2.LogprobColumns | None:
        """Scores the tokens that rows sampled; None: no row requests it.

        rows, num_tokens, tokens: [A]; num_tokens: of each row before its sample.
        """
        if not requests:
            return None
        samples = zip(rows.tolist(), num_tokens.tolist(), tokens.tolist(), strict=True)
        scored = [sample for sample in samples if sample[0] in requests]
        tables = []
        for candidates, group in groupby(scored, lambda sample: requests[sample[0]]):
            entries = list(group)
            contexts = np.array([self._contexts[row] for row, _, _ in entries], np.uint64)
            tables.append(self._score(contexts, np.array([token for _, _, token in entries]), candidates))
        for row, position, token in scored:
            self._contexts[row] += mix(token + GAMMA * (position + 1))
            self._contexts[row] &= (1 << 64) - 1
        return to_columns(tables) if scored else None

    def _score(self, contexts: Hashes, tokens: Integers, requested: LogprobCandidates) -> ScoreTable:
        """Returns the scores of tokens [M] after contexts [M]."""
        size = self._vocab_size
        first = (mix_all(contexts) % np.uint64(size)).astype(np.int64)[:, None]
        count = requested.count(size)
        ids = (first + np.arange(count)) % size
        if requested.all or requested.token_ids:
            ids = np.tile(requested.token_ids or np.arange(size), (len(tokens), 1))
        ranks, own = (ids - first) % size + 1, (tokens - first[:, 0]) % size + 1
        counts = np.full(len(tokens), count)
        return ScoreTable(self._logprobs[own], own, counts, ids, self._logprobs[ranks], ranks)


def contexts_of(tokens: Integers) -> Hashes:
    """Returns H_0 to H_N, [N + 1], of tokens [N]."""
    positions = np.uint64(GAMMA) * np.arange(1, len(tokens) + 1, dtype=np.uint64)
    return np.append(np.uint64(0), np.cumsum(mix_all(tokens.astype(np.uint64) + positions), dtype=np.uint64))
