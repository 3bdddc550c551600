"""Hidden states without a model, for rows that pool.

    element e after position p    mix(H + G * (e + 1)) / 2^63 - 1, as float32

with H of tokens 0 to p, see scores.py; where an adapter adapts position p, with the first 8 bytes of its
digest added, as a little-endian number. Logits behind a prompt are -log(rank(t)) of scores.py.

The values are a function of the tokens up to a position and of the adapter, as a model's are.
"""

from collections.abc import Callable

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire_simulated.scores import contexts_of
from pagewire_simulated.tokens import GAMMA, Hashes, mix_all
from worker.pooling.vectors import States
from worker.step.plan_reader import Step
from worker.step.rows import RowTable


class SimulatedStates:
    """The hidden states of one step. A worker.pooling.vectors.HiddenStates."""

    def __init__(
        self, rows: RowTable, step: Step, size: int, shift: Callable[[int], tuple[int, int]]
    ) -> None:
        """size: elements of a state. shift: TokenSource.state_shift."""
        self._rows, self._step, self._shift = rows, step, shift
        self._steps = np.uint64(GAMMA) * np.arange(1, size + 1, dtype=np.uint64)

    def sampled_states(self, index: Integers) -> States:
        return self._states(self._last_contexts(index))

    def chosen_logits(self, index: Integers, token_ids: Integers) -> States:
        first = mix_all(self._last_contexts(index)) % np.uint64(self._rows.vocab_size)
        ranks = (token_ids - first.astype(np.int64)[:, None]) % self._rows.vocab_size + 1
        logits = -np.log(ranks).astype(np.float32)
        return lambda: logits

    def row_states(self, entry: int, count: int) -> States:
        start = int(self._step.starts[entry])
        return self._states(self._contexts(int(self._step.rows[entry]), start + count)[start + 1 :])

    def _last_contexts(self, index: Integers) -> Hashes:
        step = self._step
        rows = step.sample_rows if step.num_logits is None else np.repeat(step.sample_rows, step.num_logits)
        found = [self._contexts(row, int(self._rows.num_tokens[row]))[-1] for row in rows[index].tolist()]
        return np.array(found, np.uint64)

    def _contexts(self, row: int, length: int) -> Hashes:
        """Returns H_0 to H_length of a row's tokens, adapted."""
        contexts, (start, number) = contexts_of(self._rows.token_ids[row, :length]), self._shift(row)
        contexts[start + 1 :] += np.uint64(number)
        return contexts

    def _states(self, contexts: Hashes) -> States:
        states = (mix_all(contexts[:, None] + self._steps) / 2.0**63 - 1).astype(np.float32)
        return lambda: states
