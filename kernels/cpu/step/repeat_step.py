"""A step that repeats the last one, each row one token further, in one call: check, inputs, the model's
program, and, where that chooses all tokens, these at the end of their rows.

Where a model's step takes two milliseconds, calling these one by one from Python takes a tenth of it: the
weights have evicted the interpreter's code and data from the caches. The reference is a launch of the same
plan by worker.executor.executor, which calls the same functions one by one.
"""

from kernels.cpu.compiler.cache import compiled
from kernels.cpu.isa.vectors import read_i64, write_i64, write_u32
from kernels.cpu.runtime.program import run_program
from kernels.cpu.step.check_step import check
from kernels.cpu.step.prepare_inputs import prepare
from kernels.cpu.step.records import CheckStepJob, PrepareInputsJob, RepeatStepJob
from kernels.ops.sampling.columns import UNKNOWN


def _advance(inputs: PrepareInputsJob, tokens: int) -> int:
    """Moves the start of each row by so many tokens. Returns the positions of all rows together, with the one
    that each computes."""
    positions = 0
    for i in range(inputs.num_rows):
        at = inputs.starts + 8 * i
        start = read_i64(at) + tokens
        write_i64(at, start)
        positions += start + 1
    return positions


def _is_ready(job: RepeatStepJob) -> bool:
    """Makes the inputs. False: the step does not fit the rows, or its attention is divided otherwise than
    that of the last one."""
    checked, inputs = CheckStepJob.at(job.check), PrepareInputsJob.at(job.inputs)
    check(checked)
    if checked.tokens != inputs.num_rows or checked.in_order != 1:
        return False
    prepare(inputs)
    return read_i64(inputs.out_made) == job.items


def _are_known(job: RepeatStepJob) -> bool:
    """Whether the program has chosen the tokens of all rows."""
    if job.tokens == 0:
        return False
    for i in range(PrepareInputsJob.at(job.inputs).num_rows):
        if read_i64(job.tokens + 8 * i) == UNKNOWN:
            return False
    return True


def _append_tokens(job: RepeatStepJob) -> None:
    """Appends the chosen tokens to their rows, a 0 where there is none."""
    checked, inputs = CheckStepJob.at(job.check), PrepareInputsJob.at(job.inputs)
    for i in range(inputs.num_rows):
        row, token = read_i64(inputs.rows + 8 * i), read_i64(job.tokens + 8 * i)
        length = read_i64(checked.num_tokens + 8 * row)
        write_i64(inputs.token_ids + inputs.token_ids_stride * row + 8 * length, max(token, 0))
        write_i64(checked.num_computed + 8 * row, length)
        write_i64(checked.num_tokens + 8 * row, length + 1)
        position = job.positions + 8 * row
        write_i64(position, read_i64(position) + 1)


def _write_next_starts(job: RepeatStepJob) -> None:
    inputs = PrepareInputsJob.at(job.inputs)
    for i in range(inputs.num_rows):
        write_u32(job.next_starts + 4 * i, read_i64(inputs.starts + 8 * i) + 1)


@compiled
def repeat_step(job: RepeatStepJob) -> None:
    """Writes the job's result, and what a step writes."""
    inputs = PrepareInputsJob.at(job.inputs)
    positions = _advance(inputs, 1)
    if job.joined_shares > 0:
        inputs.joined = positions // job.joined_shares
    if _is_ready(job):
        run_program(job.control, job.program)
        job.appended = int(_are_known(job))
        if job.appended == 1:
            _append_tokens(job)
        _write_next_starts(job)
        job.done = 1
    else:
        _advance(inputs, -1)
        job.done = 0
