"""Log-probabilities as tests look at them: one object per token."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.ipc.columns import pack_u32, unpack_f32, unpack_u32
from pagewire.v1.generation_pb2 import LogprobOptions, TokenLogprobs
from pagewire.v1.prompt_pb2 import TokenIds


def pack_f32(values: Iterable[float]) -> bytes:
    """A column of float32, which unpack_f32() reads."""
    return b"".join(struct.pack("<f", value) for value in values)


@dataclass
class Scored:
    """One token: its own values, and those of its candidates in their order."""

    logprob: float
    rank: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)


def take_apart(columns: LogprobColumns) -> list[Scored]:
    """A token per entry; checks that the columns fit one another."""
    logprobs, ranks = unpack_f32(columns.logprobs), unpack_u32(columns.ranks)
    counts = unpack_u32(columns.candidate_counts) or [0] * len(logprobs)
    candidates = list(
        zip(
            unpack_u32(columns.candidate_token_ids),
            unpack_f32(columns.candidate_logprobs),
            unpack_u32(columns.candidate_ranks),
            strict=True,
        )
    )
    assert len(candidates) == sum(counts)
    tokens, end = [], 0
    for logprob, rank, count in zip(logprobs, ranks, counts, strict=True):
        start, end = end, end + count
        ids, values, places = zip(*candidates[start:end], strict=True) if count else ((), (), ())
        tokens.append(Scored(logprob, rank, list(ids), list(values), list(places)))
    return tokens


def read_public(message: TokenLogprobs) -> list[Scored]:
    """The same of what clients get."""
    counts = list(message.candidate_counts) or [0] * len(message.logprobs)
    tokens, end = [], 0
    for logprob, rank, count in zip(message.logprobs, message.ranks, counts, strict=True):
        start, end = end, end + count
        tokens.append(
            Scored(
                logprob,
                rank,
                list(message.candidate_token_ids[start:end]),
                list(message.candidate_logprobs[start:end]),
                list(message.candidate_ranks[start:end]),
            )
        )
    columns = message.candidate_token_ids, message.candidate_logprobs, message.candidate_ranks
    assert {len(column) for column in columns} == {end}
    return tokens


def put_together(tokens: list[Scored]) -> LogprobColumns:
    """The other way round."""
    counts = [len(token.ids) for token in tokens]
    return LogprobColumns(
        logprobs=pack_f32(token.logprob for token in tokens),
        ranks=pack_u32(token.rank for token in tokens),
        candidate_counts=pack_u32(counts) if any(counts) else b"",
        candidate_token_ids=pack_u32(i for token in tokens for i in token.ids),
        candidate_logprobs=pack_f32(x for token in tokens for x in token.logprobs),
        candidate_ranks=pack_u32(rank for token in tokens for rank in token.ranks),
    )


def top(n: int) -> LogprobOptions:
    """The top n; 0: only the chosen token."""
    return LogprobOptions(top_n=n) if n else LogprobOptions()


def listed(*token_ids: int) -> LogprobOptions:
    """These tokens."""
    return LogprobOptions(token_ids=TokenIds(ids=token_ids))


EVERYTHING = LogprobOptions(all=True)
