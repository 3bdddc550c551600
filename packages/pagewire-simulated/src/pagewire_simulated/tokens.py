"""Tokens without a model: a hash of exactly the inputs that a real model's token depends on.

    prompt     blake2b with 8 bytes of digest, of the prompt's ids as little-endian uint32; with images also
               of these (media.py); with an adapter also of its digest and of its start as another number
    row        mix(prompt + mix(seed) + G * index)       index: of the sequence in its request
    token      candidates[mix(row + G * (position + 1)) mod len(candidates)]

All numbers are uint64, little-endian, and wrap; G = 0x9E3779B97F4A7C15, and `mix` is the finalizer of
SplitMix64. `position` counts the output's tokens from 0. At temperature 0, seed and index count as 0: greedy
sequences of one prompt are equal. The candidates are `allowed_token_ids` where there are any (EOS and stop
tokens included, if they are listed: this is how to request them), and otherwise the vocabulary without EOS
and stop tokens; both without `bad_token_ids`, in ascending order. Those of a row with a grammar are what it
allows at this position, without `bad_token_ids` and, before min_tokens, without EOS, unless nothing is left.

So a token is the same alone and in a batch, for any chunking of the prompt, and after preemption.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from pagewire_simulated.adapters import SimulatedAdapters
from pagewire_simulated.media import seen
from worker.grammar.matcher import Words
from worker.grammar.rows import GrammarRows
from worker.step.rows import PlanError

NO_TOKEN = -1
"""No candidate is left."""

ANY_POSITION = 1 << 62
"""A position beyond every min_tokens."""

_MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Hashes = npt.NDArray[np.uint64]


def mix(value: int) -> int:
    """Applies the finalizer of SplitMix64: every bit of the result depends on every bit of the value."""
    value &= _MASK
    value = ((value ^ value >> 30) * _FACTORS[0]) & _MASK
    value = ((value ^ value >> 27) * _FACTORS[1]) & _MASK
    return value ^ value >> 31


def mix_all(values: Hashes) -> Hashes:
    """Returns mix() of each value."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(_FACTORS[0])
    values = (values ^ values >> np.uint64(27)) * np.uint64(_FACTORS[1])
    return values ^ values >> np.uint64(31)


def token_reference(
    prompt_ids: Sequence[int],
    seed: int,
    index: int,
    position: int,
    candidates: Sequence[int],
    adapted: bytes = b"",
) -> int:
    """Returns one token by the formula. candidates: ascending. adapted: of seen(), with images, and of
    adapted_by(), with an adapter."""
    row = _row_hash(prompt_hash(pack_u32(prompt_ids) + adapted), seed, index)
    return candidates[mix(row + GAMMA * (position + 1)) % len(candidates)]


class TokenSource:
    """Chooses tokens for rows: the sampler of a worker without a model."""

    def __init__(
        self,
        max_num_rows: int,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        grammars: GrammarRows | None = None,
    ) -> None:
        """grammars: of the same rows; None: a row that comes with one fails."""
        self.adapters = SimulatedAdapters()
        self.grammars = grammars or GrammarRows(vocab_size, None)
        self._forbidden: dict[int, tuple[Integers, int]] = {}  # row with a grammar -> bad ids, min_tokens
        self._vocab = np.arange(vocab_size)
        self._eos = frozenset(eos_token_ids)
        self._usual = np.setdiff1d(self._vocab, list(self._eos))
        self._hashes = np.zeros(max_num_rows, np.uint64)
        self._adapted: dict[int, tuple[int, int]] = {}  # row -> what state_shift() returns
        self._origins: dict[int, tuple[int, int, bool]] = {}  # row -> prompt's hash, seed, greedy
        self._unusual: dict[int, Integers] = {}  # row -> candidates, where they are not the usual ones

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. The prompt is read from the message, where it is bytes already; output does not
        matter."""
        prompt = prompt_hash(new.token_ids[: 4 * new.prompt_len] + self.adapted(new))
        self._origins[row] = prompt, new.sampling.seed, new.sampling.temperature == 0
        if new.HasField("adapter"):
            self._adapted[row] = new.adapter.start, int.from_bytes(new.adapter.digest[:8], "little")
        self._set_hash(row, new.sequence_index)
        self.grammars.add_row(row, new, prompt_ids, output_ids)
        if row in self.grammars:
            self._forbidden[row] = np.array(new.sampling.bad_token_ids, np.int64), new.min_tokens
        candidates = self._candidates(new)
        if candidates is not self._usual:
            self._unusual[row] = candidates

    def adapted(self, new: worker_pb2.NewRow) -> bytes:
        """Returns what a row's images and its adapter add to its prompt. Raises PlanError where the adapter
        is not loaded."""
        images = seen(new.media)
        if not new.HasField("adapter"):
            return images
        if new.adapter.digest not in self.adapters:
            raise PlanError(f"row {new.row}: its adapter is not loaded")
        return images + adapted_by(new.adapter.digest, new.adapter.start)

    def state_shift(self, row: int) -> tuple[int, int]:
        """Returns the position from which on a row is adapted, and what its adapter adds to the hash of its
        tokens from there on; (0, 0) without an adapter. See pagewire_simulated.states."""
        return self._adapted.get(row, (0, 0))

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row with the tokens of its source."""
        self._origins[row] = self._origins[source_row]
        if source_row in self._adapted:
            self._adapted[row] = self._adapted[source_row]
        self._set_hash(row, sequence_index)
        self.grammars.fork_row(row, source_row, sequence_index)
        if source_row in self._forbidden:
            self._forbidden[row] = self._forbidden[source_row]
        if source_row in self._unusual:
            self._unusual[row] = self._unusual[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        del self._origins[row]
        self._adapted.pop(row, None)
        self._unusual.pop(row, None)
        self._forbidden.pop(row, None)
        self.grammars.remove_row(row)

    def sample(self, rows: Integers, positions: Integers) -> Integers:
        """Returns one token for each of the rows, all [A]; NO_TOKEN where there is no candidate."""
        steps = np.uint64(GAMMA) * (positions + 1).astype(np.uint64)
        hashes = mix_all(self._hashes[rows] + steps)
        tokens = _pick(self._usual, hashes)
        if self._unusual:
            for at, row in enumerate(rows.tolist()):
                if row in self._unusual:
                    tokens[at] = _pick(self._unusual[row], hashes[at : at + 1])[0]
        self._follow_grammars(rows.tolist(), positions, hashes, tokens)
        return tokens

    def _follow_grammars(
        self, rows: list[int], positions: Integers, hashes: Hashes, tokens: Integers
    ) -> None:
        """Replaces the tokens [A] of rows that have grammars, and advances these."""
        users = self.grammars.users(rows)
        if not users:
            return
        masks = self.grammars.words([rows[user] for user in users])
        for user, words in zip(users, masks, strict=True):
            candidates = self._allowed(rows[user], words, int(positions[user]))
            tokens[user] = _pick(candidates, hashes[user : user + 1])[0]
        known = tokens.tolist()
        self.grammars.record(rows, lambda: known)

    def _allowed(self, row: int, words: Words, position: int) -> Integers:
        """Returns the tokens that a row's grammar allows, ascending, less those forbidden if others are
        left."""
        bits = np.unpackbits(words.view(np.uint8), count=len(self._vocab), bitorder="little")
        candidates = np.flatnonzero(bits)
        bad, min_tokens = self._forbidden[row]
        early = list(self._eos) if position < min_tokens else []
        for forbidden in (bad, early):
            left = np.setdiff1d(candidates, forbidden)
            candidates = left if len(left) else candidates
        return candidates

    def candidates(self, row: int) -> Integers:
        """Returns the tokens that a row may choose, ascending."""
        if row in self.grammars:
            return self._allowed(row, self.grammars.words([row])[0], ANY_POSITION)
        return self._unusual.get(row, self._usual)

    def _set_hash(self, row: int, index: int) -> None:
        prompt, seed, greedy = self._origins[row]
        self._hashes[row] = _row_hash(prompt, 0, 0) if greedy else _row_hash(prompt, seed, index)

    def _candidates(self, new: worker_pb2.NewRow) -> Integers:
        allowed, bad = list(new.sampling.allowed_token_ids), list(new.sampling.bad_token_ids)
        if allowed:
            candidates = np.intersect1d(self._vocab, allowed)
        elif self._eos.issuperset(new.stop_token_ids):
            candidates = self._usual
        else:
            candidates = np.setdiff1d(self._usual, list(new.stop_token_ids))
        return np.setdiff1d(candidates, bad) if bad else candidates


def _pick(candidates: Integers, hashes: Hashes) -> Integers:
    if not len(candidates):
        return np.full(len(hashes), NO_TOKEN)
    chosen: Integers = candidates[hashes % np.uint64(len(candidates))]
    return chosen


def adapted_by(digest: bytes, start: int) -> bytes:
    """Returns what an adapter adds to the prompt of its row."""
    return digest + pack_u32([start])


def prompt_hash(column: bytes) -> int:
    """Returns the hash of a prompt's ids. column: their bytes."""
    return int.from_bytes(blake2b(column, digest_size=8).digest(), "little")


def _row_hash(prompt: int, seed: int, index: int) -> int:
    return mix(prompt + mix(seed) + GAMMA * index)
