"""Jobs of the functions that check a plan, prepare the inputs of a step, and repeat one. All arrays are
int64."""

from kernels.cpu.compiler.records import Address, Record, i64, record


@record
class CheckStepJob(Record):
    """kernels.cpu.step.check_step.check_step. num_tokens .. marks: one number for each row of the table."""

    num_tokens: Address
    num_computed: Address
    num_blocks: Address
    marks: Address  # all 0, before and after
    max_rows: i64
    block_size: i64
    max_length: i64
    columns: Address = 0  # rows, starts, counts [num_rows]; sample rows, sample sources [num_samples]
    num_rows: i64 = 0
    num_samples: i64 = 0
    # Results.
    tokens: i64 = 0  # -1: the step does not fit
    context: i64 = 0  # the largest end of a row
    in_order: i64 = 0  # 1: each row that computes samples, in the same order


@record
class PrepareInputsJob(Record):
    """kernels.cpu.step.prepare_inputs.prepare_inputs."""

    # Tables of all rows.
    token_ids: Address
    token_ids_stride: i64  # in bytes, from row to row
    blocks: Address
    blocks_stride: i64
    prompt_lens: Address
    # The step.
    rows: Address = 0  # [num_rows]
    starts: Address = 0  # [num_rows]
    counts: Address = 0  # [num_rows]
    num_rows: i64 = 0
    block_size: i64
    kv_heads: i64
    group: i64  # query heads per KV head
    # Results: T tokens, I items, A samples.
    out_ids: Address = 0  # [T]
    out_positions: Address = 0  # [T]
    out_prompt_lens: Address = 0  # [T]
    out_slots: Address = 0  # [T * kv_heads]
    out_items: Address = 0  # [I] kernels.cpu.attention.records.AttentionItem
    out_rows: Address = 0  # [T]: row of the tables
    out_row_starts: Address = 0  # [num_rows]
    out_logit_tokens: Address = 0  # [A]
    sources: Address = 0  # [A]: which rows of the step are sampled from
    num_samples: i64 = 0
    whole: i64 = 0  # rows of more positions are split
    joined: i64 = 0  # two rows of no more positions together may be one item
    num_items: i64 = 0  # I: there is room for so many
    out_made: Address = 0  # [1]: how many items are taken by themselves


@record
class RepeatStepJob(Record):
    """kernels.cpu.step.repeat_step.repeat_step."""

    check: Address = 0  # CheckStepJob of the last step
    inputs: Address = 0  # PrepareInputsJob of the last step, whose starts are those of the check
    items: i64 = 0  # of attention that are taken by themselves, as in the last step
    joined_shares: i64 = 0  # two rows may be one item of that share of all positions; 0: they may not
    program: Address = 0  # its head
    control: Address = 0  # of the team
    tokens: Address = 0  # [num_rows]: what the program chooses, some maybe UNKNOWN; 0: it computes logits
    positions: Address = 0  # of the sampler, by row of the table, where there are tokens
    # Results.
    done: i64 = 0  # 0: another way is needed, and nothing has changed
    appended: i64 = 0  # 1: the tokens, to their rows
    next_starts: Address = 0  # [num_rows] uint32: of the next step
