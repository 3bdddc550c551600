"""The row table: tokens, block tables and lengths of every running sequence.

A row lives from admission to end, in arrays that are allocated once; a step's inputs are gathered from them
(worker.model_input). The plan comes from another process, so it is checked against the rows: a plan that does
not fit raises PlanError and changes nothing that a client could see, since the worker stops.

    token_ids[row]    prompt, then output      |<------- num_tokens ------->|
    KV in the cache                            |<-- num_computed -->|
    blocks[row]       block table              |<-------- num_blocks * S ------->|
"""

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers, ranges
from pagewire.internal.v1 import worker_pb2


class PlanError(Exception):
    """The plan does not fit the rows: a bug in the core or in the worker."""


def column(data: bytes) -> npt.NDArray[np.int64]:
    """Decodes a uint32 column as int64."""
    return np.frombuffer(data, dtype="<u4").astype(np.int64)


def require(condition: bool | np.bool_, message: str) -> None:
    """Raises PlanError unless the condition holds."""
    if not condition:
        raise PlanError(message)


class RowTable:
    """Tokens, block tables and lengths by row. Unused rows have no tokens and no blocks."""

    def __init__(
        self, max_num_rows: int, max_model_len: int, vocab_size: int, block_size: int, num_blocks: int
    ) -> None:
        """vocab_size, num_blocks: token and block ids from these on are refused."""
        self.max_num_rows, self.max_model_len, self.vocab_size = max_num_rows, max_model_len, vocab_size
        self.block_size, self.cache_blocks = block_size, num_blocks
        width = -(-max_model_len // block_size)
        # np.zeros maps pages lazily: rows that are never used take no memory. One token may be sampled behind
        # a prompt of max_model_len, and is never computed.
        self.token_ids = np.zeros((max_num_rows, max_model_len + 1), np.int64)
        self.blocks = np.zeros((max_num_rows, width), np.int64)
        self.num_tokens = np.zeros(max_num_rows, np.int64)
        self.prompt_lens = np.zeros(max_num_rows, np.int64)
        self.num_blocks = np.zeros(max_num_rows, np.int64)
        self.num_computed = np.zeros(max_num_rows, np.int64)

    def remove(self, row: int) -> None:
        """Ends a row. Its token_ids, prompt_lens and num_computed stay until another one begins."""
        require(row < self.max_num_rows and self.num_tokens[row] > 0, f"row {row} is not in use")
        self.num_tokens[row] = self.num_blocks[row] = 0

    def add(self, new: worker_pb2.NewRow) -> tuple[list[int], list[int]]:
        """Begins a row. Returns the token ids of its prompt and of the output that it already has."""
        tokens, row = column(new.token_ids), new.row
        self._require_unused(row)
        require(0 < len(tokens) <= self.max_model_len, f"row {row} begins with {len(tokens)} tokens")
        require(tokens.max() < self.vocab_size, f"row {row} begins with a token out of range")
        require(0 < new.prompt_len <= len(tokens), f"row {row} has a prompt of {new.prompt_len} tokens")
        self.token_ids[row, : len(tokens)] = tokens
        self.num_tokens[row], self.prompt_lens[row] = len(tokens), new.prompt_len
        self.num_computed[row] = len(tokens)  # a prefix may be in the cache: any start is valid
        blocks = column(new.blocks)
        self.set_blocks(np.array([row]), np.array([0]), np.array([len(blocks)]), blocks)
        ids = tokens.tolist()
        return ids[: new.prompt_len], ids[new.prompt_len :]

    def fork(self, row: int, source: int) -> None:
        """Begins a row as a copy of another one."""
        require(source < self.max_num_rows and self.num_tokens[source] > 0, f"row {source} is not in use")
        self._require_unused(row)
        used, held = self.num_tokens[source], self.num_blocks[source]
        self.token_ids[row, :used] = self.token_ids[source, :used]
        self.blocks[row, :held] = self.blocks[source, :held]
        for lengths in (self.num_tokens, self.prompt_lens, self.num_blocks, self.num_computed):
            lengths[row] = lengths[source]

    def set_blocks(self, rows: Integers, starts: Integers, counts: Integers, blocks: Integers) -> None:
        """Writes X ranges of block tables. rows, starts, counts: [X]; blocks: [sum of counts]."""
        require(len(rows) == len(starts) == len(counts), "table columns differ in length")
        require(len(blocks) == counts.sum(), "table_blocks does not have sum(table_counts) entries")
        if not len(rows):
            return
        ends = starts + counts
        require((rows < self.max_num_rows).all(), "a table change names a row out of range")
        require((self.num_tokens[rows] > 0).all(), "a table change names a row that is not in use")
        require((ends <= self.blocks.shape[1]).all(), "a block table is longer than max_model_len")
        require((blocks < self.cache_blocks).all(), "a block table names a block out of range")
        owners, columns = ranges(starts, counts)
        self.blocks[rows[owners], columns] = blocks
        np.maximum.at(self.num_blocks, rows, ends)

    def check_compute(self, rows: Integers, starts: Integers, counts: Integers) -> None:
        """Raises PlanError unless the rows [R] have the tokens and blocks that they compute."""
        require(len(rows) == len(starts) == len(counts), "rows, starts and counts differ in length")
        require((rows < self.max_num_rows).all(), "a computing row is out of range")
        require(len(np.unique(rows)) == len(rows), "a row computes twice in one step")
        ends = starts + counts
        require((counts > 0).all(), "a row computes no token")
        require((ends <= self.num_tokens[rows]).all(), "a row computes tokens that it does not have")
        require((starts <= self.num_computed[rows]).all(), "a row leaves out tokens")
        require((ends <= self.num_blocks[rows] * self.block_size).all(), "a row computes beyond its blocks")

    def check_sample(self, rows: Integers, sources: Integers, computing: Integers, ends: Integers) -> None:
        """Raises PlanError unless the sampling rows [A] compute their last token. ends: [R]."""
        require(len(rows) == len(sources), "sample_rows and sample_sources differ in length")
        require((rows < self.max_num_rows).all(), "a sampling row is out of range")
        require((sources < len(computing)).all(), "a sample names no computing row")
        require(len(np.unique(rows)) == len(rows), "a row samples twice in one step")
        require((self.num_tokens[rows] == ends[sources]).all(), "a row samples before its last token")
        require((self.num_tokens[rows] <= self.max_model_len).all(), "a row samples beyond max_model_len")

    def check_append(self, rows: Integers, token_ids: Integers) -> None:
        """Raises PlanError unless one token can be appended to each of the rows [P]."""
        require(len(rows) == len(token_ids), "append_rows and append_token_ids differ in length")
        require((rows < self.max_num_rows).all(), "a row that is appended to is out of range")
        require(len(np.unique(rows)) == len(rows), "a row is appended to twice")
        require((token_ids < self.vocab_size).all(), "an appended token is out of range")
        lengths = self.num_tokens[rows]
        require(((lengths > 0) & (lengths < self.max_model_len)).all(), "a row has no place for a token")
        require((self.num_computed[rows] == lengths).all(), "a row is appended to before its last token")

    def finish_step(self, rows: Integers, ends: Integers) -> None:
        """Records that the KV of the rows is computed up to their ends [R]."""
        self.num_computed[rows] = ends

    def append(self, rows: Integers, token_ids: Integers) -> None:
        """Appends one token, sampled or chosen by the core, to each of the rows [A]."""
        at = self.num_tokens[rows]
        self.token_ids[rows, at] = token_ids
        self.num_computed[rows] = at  # of a fork, too: its source computed the same tokens
        self.num_tokens[rows] = at + 1

    def _require_unused(self, row: int) -> None:
        require(row < self.max_num_rows, f"row {row} is out of range")
        require(self.num_tokens[row] == 0, f"row {row} is in use")
