"""Selects, joins and validates LogprobColumns by whole tokens."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.ipc.columns import pack_u32, unpack_u32

MAX_PROMPT_CANDIDATES = 1 << 22
"""Most candidates of one prompt over all positions. They are sent in one message of at most 64 MiB, at 10 to
15 bytes each."""

MAX_OUTPUT_VALUES = MAX_PROMPT_CANDIDATES
"""Most log-probabilities in one message: of tokens, of candidates and of the prompt."""

_NUMBER = 4
"""Bytes per number in a column."""


class TokenColumns(NamedTuple):
    """The columns of one token, without candidate_counts."""

    logprobs: bytes
    ranks: bytes
    candidate_token_ids: bytes = b""
    candidate_logprobs: bytes = b""
    candidate_ranks: bytes = b""

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self))


def num_tokens(columns: LogprobColumns) -> int:
    """Returns the number of tokens, by the first column."""
    return len(columns.logprobs) // _NUMBER


def check(columns: LogprobColumns) -> None:
    """Raises ValueError unless the columns' lengths agree."""
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


def pick(columns: LogprobColumns, indices: Sequence[int]) -> LogprobColumns:
    """Returns the tokens at ascending indices; the same object if these are all tokens."""
    if len(indices) == num_tokens(columns):
        return columns
    starts = [_NUMBER * index for index in indices]
    picked = LogprobColumns(logprobs=_cut(columns.logprobs, starts), ranks=_cut(columns.ranks, starts))
    if columns.candidate_counts and indices:
        ends = list(accumulate(unpack_u32(columns.candidate_counts)))
        spans = [(_NUMBER * (ends[index - 1] if index else 0), _NUMBER * ends[index]) for index in indices]
        picked.candidate_counts = _cut(columns.candidate_counts, starts)
        for name in ("candidate_token_ids", "candidate_logprobs", "candidate_ranks"):
            column = getattr(columns, name)
            setattr(picked, name, b"".join([column[start:end] for start, end in spans]))
    return picked


def join(parts: Sequence[LogprobColumns]) -> LogprobColumns:
    """Concatenates the tokens of all parts; returns the same object if there is one part."""
    if len(parts) == 1:
        return parts[0]
    joined = LogprobColumns()
    for name in TokenColumns._fields:
        setattr(joined, name, b"".join([getattr(part, name) for part in parts]))
    if any(part.candidate_counts for part in parts):  # a part without counts has no candidates
        counts = [part.candidate_counts or bytes(len(part.ranks)) for part in parts]
        joined.candidate_counts = b"".join(counts)
    return joined


def split(columns: LogprobColumns) -> Iterator[TokenColumns]:
    """Yields the columns of each token. Raises ValueError unless their lengths agree."""
    check(columns)
    counts: Sequence[int] = unpack_u32(columns.candidate_counts) or [0] * num_tokens(columns)
    start = 0
    for token, count in enumerate(counts):
        at, end = _NUMBER * token, start + _NUMBER * count
        yield TokenColumns(
            columns.logprobs[at : at + _NUMBER],
            columns.ranks[at : at + _NUMBER],
            columns.candidate_token_ids[start:end],
            columns.candidate_logprobs[start:end],
            columns.candidate_ranks[start:end],
        )
        start = end


def join_tokens(tokens: Sequence[TokenColumns]) -> LogprobColumns:
    """Returns the columns of consecutive tokens."""
    joined = LogprobColumns(
        **{
            name: b"".join(parts)
            for name, parts in zip(TokenColumns._fields, zip(*tokens, strict=True), strict=False)
        }
    )
    if joined.candidate_token_ids:
        joined.candidate_counts = pack_u32([len(token.candidate_token_ids) // _NUMBER for token in tokens])
    return joined


def _cut(column: bytes, starts: Sequence[int]) -> bytes:
    return b"".join([column[start : start + _NUMBER] for start in starts])
