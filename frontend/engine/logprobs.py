"""Log-probabilities of consecutive tokens, in columns: from the core's messages to the client's."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, compress
from math import nan
from typing import Self

from frontend.errors import InvalidRequest
from frontend.validation.rules import num_candidates
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_f32_array, unpack_u8, unpack_u32_array
from pagewire.ipc.logprob_columns import MAX_PROMPT_CANDIDATES, check
from pagewire.v1 import generation_pb2

TokenBytes = Callable[[int], bytes]

_CANDIDATES = ("ids", "values", "places")


class Scores:
    """Log-probabilities of M tokens. Fields mean what LogprobColumns says; `ends` are cumulative candidate
    counts, empty where no token has candidates."""

    __slots__ = ("logprobs", "ranks", "ends", "ids", "values", "places")

    def __init__(self) -> None:
        self.logprobs = array("f")  # [M]
        self.ranks = array("I")  # [M]
        self.ends = array("Q")  # [M] or empty: end of each token's candidates
        self.ids = array("I")  # candidates: token ids
        self.values = array("f")  # ... log-probabilities
        self.places = array("I")  # ... ranks

    @classmethod
    def read(cls, columns: engine_pb2.LogprobColumns) -> Self:
        """Reads the core's columns. Raises ValueError when they do not fit together."""
        check(columns)
        scores = cls()
        scores.logprobs = unpack_f32_array(columns.logprobs)
        scores.ranks = unpack_u32_array(columns.ranks)
        scores.ends = array("Q", accumulate(unpack_u32_array(columns.candidate_counts)))
        scores.ids = unpack_u32_array(columns.candidate_token_ids)
        scores.values = unpack_f32_array(columns.candidate_logprobs)
        scores.places = unpack_u32_array(columns.candidate_ranks)
        return scores

    @classmethod
    def unknown(cls, count: int) -> Self:
        """Returns placeholders for `count` tokens: NaN, and rank 0."""
        scores = cls()
        scores.logprobs = array("f", [nan]) * count
        scores.ranks = array("I", bytes(4 * count))
        return scores

    def __len__(self) -> int:
        return len(self.logprobs)

    def cut(self, start: int, end: int) -> "Scores":
        """Returns the columns of tokens start to end - 1."""
        scores = Scores()
        scores.logprobs, scores.ranks = self.logprobs[start:end], self.ranks[start:end]
        if self.ends:
            first = self.ends[start - 1] if start else 0
            last = self.ends[end - 1] if end else 0
            scores.ends = array("Q", [place - first for place in self.ends[start:end]])
            for name in _CANDIDATES:
                setattr(scores, name, getattr(self, name)[first:last])
        return scores

    def extend(self, more: "Scores") -> None:
        """Appends the columns of the tokens that follow."""
        if self.ends or more.ends:
            first = len(self.ids)
            if not self.ends:
                self.ends = array("Q", bytes(8 * len(self)))
            self.ends.extend([first + end for end in more.ends] if more.ends else [first] * len(more))
            for name in _CANDIDATES:
                getattr(self, name).extend(getattr(more, name))
        self.logprobs.extend(more.logprobs)
        self.ranks.extend(more.ranks)

    def put(self, message: generation_pb2.TokenLogprobs, token_bytes: TokenBytes | None) -> None:
        """Writes the columns into a message. token_bytes: returns a candidate's bytes; None: not
        requested."""
        message.logprobs.extend(self.logprobs)
        message.ranks.extend(self.ranks)
        if not self.ends:
            return
        before = 0
        for end in self.ends:
            message.candidate_counts.append(end - before)
            before = end
        message.candidate_token_ids.extend(self.ids)
        message.candidate_logprobs.extend(self.values)
        message.candidate_ranks.extend(self.places)
        if token_bytes is not None:
            message.candidate_bytes.extend(map(token_bytes, self.ids))


class PromptScores:
    """Log-probabilities of a request's prompt, which arrive in parts and go into the first message."""

    def __init__(self, start: int, prompt_len: int) -> None:
        """start: the first requested position. Position 0 has no log-probability: NaN."""
        self._next = max(start, 1)
        self._end = prompt_len
        self._scores = Scores.unknown(1 if start == 0 else 0)

    @property
    def missing(self) -> int | None:
        """The first position that has not arrived; None: all have."""
        return self._next if self._next < self._end else None

    def add(self, start: int, part: Scores) -> None:
        """Appends a part. Raises ValueError unless it follows the previous one."""
        if start != self._next or start + len(part) > self._end:
            raise ValueError(f"log-probabilities of the prompt from {start} on do not follow {self._next}")
        self._scores.extend(part)
        self._next += len(part)

    def take(self, message: generation_pb2.TokenLogprobs, token_bytes: TokenBytes | None) -> None:
        """Writes everything into a message and drops it."""
        self._scores.put(message, token_bytes)
        self._scores = Scores()


def check_prompt_logprobs(output: generation_pb2.OutputOptions, prompt_len: int, vocab_size: int) -> None:
    """Raises InvalidRequest when the requested log-probabilities of a prompt begin behind it, or are too many
    for a message."""
    if not output.HasField("prompt_logprobs"):
        return
    start = output.prompt_logprobs_start
    if start >= prompt_len:
        problem = f"must be below the prompt's length of {prompt_len} tokens, not {start}"
        raise InvalidRequest({"output.prompt_logprobs_start": problem})
    total = (prompt_len - start) * num_candidates(output.prompt_logprobs, vocab_size)
    if total > MAX_PROMPT_CANDIDATES:
        problem = f"would be {total} candidates in one message, more than {MAX_PROMPT_CANDIDATES}"
        raise InvalidRequest({"output.prompt_logprobs": problem})


def split_scores(outputs: engine_pb2.StepOutputs, counts: Sequence[int]) -> Iterator[Scores | None]:
    """Yields the scores of each row of a step's outputs. Raises ValueError when the counts do not fit."""
    scores, has = Scores.read(outputs.logprobs), unpack_u8(outputs.has_logprobs)
    if len(has) != len(counts) or sum(compress(counts, has)) != len(scores):
        raise ValueError("log-probabilities do not fit the tokens")
    return _cut_scores(scores, zip(has, counts, strict=True))


def _cut_scores(scores: Scores, entries: Iterable[tuple[int, int]]) -> Iterator[Scores | None]:
    end = 0
    for has, count in entries:
        if has:
            start, end = end, end + count
        yield scores.cut(start, end) if has else None
