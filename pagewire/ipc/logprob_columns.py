"""LogprobColumns as whole tokens: some of them picked out, several messages joined, bad ones refused."""

from collections.abc import Sequence
from itertools import accumulate

from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.ipc.columns import unpack_u32

MAX_PROMPT_CANDIDATES = 1 << 22
"""Candidates of one prompt, all positions together. They travel in one message to the client, which takes
64 MiB, at 10 to 15 bytes each."""

MAX_OUTPUT_VALUES = MAX_PROMPT_CANDIDATES
"""Log-probabilities that one message may carry in all: of tokens, of candidates, and of the prompt's."""

_NUMBER = 4
"""Bytes of a number in a column."""


def num_tokens(columns: LogprobColumns) -> int:
    """M, by the first column."""
    return len(columns.logprobs) // _NUMBER


def check(columns: LogprobColumns) -> None:
    """Raises ValueError unless the columns fit one another."""
    total = sum(unpack_u32(columns.candidate_counts))
    tokens = {len(columns.logprobs), len(columns.ranks), len(columns.candidate_counts or columns.ranks)}
    candidates = {
        total * _NUMBER,
        len(columns.candidate_token_ids),
        len(columns.candidate_logprobs),
        len(columns.candidate_ranks),
    }
    if len(tokens) != 1 or len(candidates) != 1 or len(columns.logprobs) % _NUMBER:
        raise ValueError("columns of log-probabilities differ in length")


def pick(columns: LogprobColumns, places: Sequence[int]) -> LogprobColumns:
    """The tokens at these places, which ascend; the same object when they are all."""
    if len(places) == num_tokens(columns):
        return columns
    starts = [_NUMBER * place for place in places]
    picked = LogprobColumns(logprobs=_cut(columns.logprobs, starts), ranks=_cut(columns.ranks, starts))
    if columns.candidate_counts and places:
        ends = list(accumulate(unpack_u32(columns.candidate_counts)))
        spans = [(_NUMBER * (ends[place - 1] if place else 0), _NUMBER * ends[place]) for place in places]
        picked.candidate_counts = _cut(columns.candidate_counts, starts)
        for name in ("candidate_token_ids", "candidate_logprobs", "candidate_ranks"):
            column = getattr(columns, name)
            setattr(picked, name, b"".join([column[start:end] for start, end in spans]))
    return picked


def join(parts: Sequence[LogprobColumns]) -> LogprobColumns:
    """The tokens of all parts, one after another; the same object when there is one part."""
    if len(parts) == 1:
        return parts[0]
    joined = LogprobColumns()
    for name in ("logprobs", "ranks", "candidate_token_ids", "candidate_logprobs", "candidate_ranks"):
        setattr(joined, name, b"".join([getattr(part, name) for part in parts]))
    if any(part.candidate_counts for part in parts):  # those that have none have none at every token
        counts = [part.candidate_counts or bytes(len(part.ranks)) for part in parts]
        joined.candidate_counts = b"".join(counts)
    return joined


def _cut(column: bytes, starts: Sequence[int]) -> bytes:
    return b"".join([column[start : start + _NUMBER] for start in starts])
