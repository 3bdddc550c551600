"""Log-probabilities as columns of a message, made with numpy alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Scores of M tokens. Candidates are padded to the same number K: the first counts[i] of token i are
    valid."""

    logprobs: Floats  # [M]
    ranks: Integers  # [M]
    counts: Integers  # [M]
    candidate_ids: Integers  # [M, K]
    candidate_logprobs: Floats  # [M, K]
    candidate_ranks: Integers  # [M, K]


def to_columns(tables: Sequence[ScoreTable]) -> engine_pb2.LogprobColumns:
    """Returns the tokens of all tables, one table after another."""
    counts = _joined([table.counts for table in tables])
    real = [np.arange(table.candidate_ids.shape[1]) < table.counts[:, None] for table in tables]

    def candidates(name: str) -> npt.NDArray[np.generic]:
        return _joined([getattr(table, name)[mask] for table, mask in zip(tables, real, strict=True)])

    return engine_pb2.LogprobColumns(
        logprobs=_floats(_joined([table.logprobs for table in tables])),
        ranks=_integers(_joined([table.ranks for table in tables])),
        candidate_counts=_integers(counts) if counts.any() else b"",
        candidate_token_ids=_integers(candidates("candidate_ids")),
        candidate_logprobs=_floats(candidates("candidate_logprobs")),
        candidate_ranks=_integers(candidates("candidate_ranks")),
    )


def _joined(parts: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _integers(values: npt.NDArray[np.generic]) -> bytes:
    return values.astype("<u4").tobytes()


def _floats(values: npt.NDArray[np.generic]) -> bytes:
    return values.astype("<f4").tobytes()
