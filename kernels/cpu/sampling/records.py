"""Records of the functions that choose tokens, and of those that change logits before. V is the size of the
vocabulary."""

from kernels.cpu.compiler.records import Address, OperationRecord, i64, record


@record
class LargestRecord(OperationRecord):
    """kernels.cpu.sampling.choose.find_largest, whose rows are pieces of rows of logits."""

    logits: Address = 0  # [logit_rows, V] float32, contiguous
    vocab_size: i64
    logit_rows: i64 = 0
    largest: Address  # [logit_rows, chunks] float32: the largest logit of each chunk


@record
class ChooseRecord(OperationRecord):
    """kernels.cpu.sampling.choose.choose_rows."""

    logits: Address = 0  # [A, V] float32, contiguous
    vocab_size: i64 = 0
    largest: Address = 0  # [A, chunks] float32: see LargestRecord; 0: not found yet
    indexes: Address = 0  # [A] int64: index into the rows; 0: in order
    rows_of_columns: Address = 0  # [T] int64
    columns: Address = 0  # [columns, num_rows]: the words of kernels.ops.sampling.columns.SamplingColumns
    num_rows: i64 = 0
    tokens: Address = 0  # [A] int64: the result
    scratch: Address = 0  # addresses of each thread's memory, of scratch_bytes(V)


@record
class PenaltiesRecord(OperationRecord):
    """kernels.cpu.sampling.logits_processors.penalize_rows. Of A rows of a step, U are penalized; the columns
    that follow vocab_size are [U] int64."""

    logits: Address  # [A, V] float32, contiguous, changed
    vocab_size: i64
    batch_index: Address  # rows of the logits
    lengths: Address  # tokens of the history
    histories: Address  # addresses of [length] int64
    counts: Address  # addresses of [V] int32
    strengths: Address  # addresses of [3] float32: repetition, frequency, presence
    seen: Address  # [threads, V] bytes, all 0, as they are afterwards


@record
class BitmaskRecord(OperationRecord):
    """kernels.cpu.sampling.logits_processors.mask_rows. Of A rows of a step, U are masked."""

    logits: Address  # [A, V] float32, contiguous, changed
    vocab_size: i64
    batch_index: Address  # [U] int64: rows of the logits
    masks: Address  # [U] int64: addresses of [ceil(V / 32)] int32, a bit per token
