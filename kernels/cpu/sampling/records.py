"""Records of the functions that choose tokens, and of those that change logits before. V is the size of the
vocabulary."""

from kernels.cpu.compiler.records import Address, OperationRecord, Record, i64, record

UNKNOWN = -2
"""Instead of a token, or of a place in a ranking: last bits of a sum could matter, and torch is to choose."""


@record
class FindRecord(OperationRecord):
    """kernels.cpu.sampling.argmax.find_in_pieces, whose rows are pieces of rows of logits."""

    logits: Address  # [logit_rows, V] float32
    vocab_size: i64
    logit_rows: i64 = 0
    found: Address  # [rows, 2]: the largest as float64, its token as int64


@record
class MergeRecord(OperationRecord):
    """kernels.cpu.sampling.argmax.merge_pieces."""

    found: Address  # [pieces, rows, 2]: see FindRecord
    pieces: i64
    tokens: Address  # [rows] int64


@record
class ChooseRecord(Record):
    """kernels.cpu.sampling.choose.choose_rows."""

    logits: Address = 0  # [A, V] float32, contiguous
    tokens: Address = 0  # [A] int64: rows of the columns; then the result
    vocab_size: i64 = 0
    columns: Address = 0  # [columns, num_rows]: the words of kernels.ops.sampling.columns.SamplingColumns
    num_rows: i64 = 0


@record
class PenaltiesRecord(Record):
    """kernels.cpu.sampling.logits_processors.penalize_rows. Of A rows of a step, U are penalized; the columns
    that follow vocab_size are [U] int64."""

    logits: Address  # [A, V] float32, contiguous, changed
    vocab_size: i64
    batch_index: Address  # rows of the logits
    lengths: Address  # tokens of the history
    histories: Address  # addresses of [length] int64
    counts: Address  # addresses of [V] int32
    strengths: Address  # addresses of [3] float32: repetition, frequency, presence


@record
class BitmaskRecord(Record):
    """kernels.cpu.sampling.logits_processors.mask_rows. Of A rows of a step, U are masked."""

    logits: Address  # [A, V] float32, contiguous, changed
    vocab_size: i64
    batch_index: Address  # [U] int64: rows of the logits
    masks: Address  # [U] int64: addresses of [ceil(V / 32)] int32, a bit per token
