"""The plan of one step: the scheduler's decision as plain data, and its form on the wire.

Fields are those of StepPlan in worker.proto, which states the order in which they are applied.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.internal.v1.engine_pb2 import InputEmbeddings, MediaKind, Pooling
from pagewire.ipc.columns import pack_u32
from pagewire.v1.generation_pb2 import LogprobOptions, SamplingParams
from pagewire.v1.prompt_pb2 import TokenIds


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter (LoRA), and from where on it adapts a sequence."""

    name: str
    source: str  # folder of its files
    digest: bytes  # names it at the worker; its name and its folder may be another's later
    start: int  # first position that it adapts
    virtual_tokens: int = 0  # first tokens of the prompt that stand for its embeddings (prompt tuning)


@dataclass(slots=True)
class MediaItem:
    """What the model's encoder takes at once, and the positions of a prompt that get its vectors."""

    kind: MediaKind
    shape: tuple[int, ...]
    data: bytes  # that equal items of requests in flight share
    digest: bytes  # of kind, shape and data
    positions: array[int]  # ascending, not empty


@dataclass(frozen=True, slots=True)
class RowParameters:
    """Parameters of a request that the scheduler passes to the worker's rows unread."""

    sampling: SamplingParams
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...]
    logprobs: LogprobOptions | None = None  # of the output
    grammar: str = ""  # of the output; "": none
    pooling: Pooling | None = None  # the row gives a vector in place of tokens
    embeddings: InputEmbeddings | None = None  # in place of tokens of the prompt
    adapter: AdapterUse | None = None
    media: tuple[MediaItem, ...] = ()  # whose vectors stand in place of tokens of the prompt; in order


@dataclass(slots=True)
class NewRow:
    """A row that begins, with all that the worker keeps of it."""

    row: int
    token_ids: array[int]  # prompt, then output
    prompt_len: int
    blocks: list[int]
    sequence_index: int
    parameters: RowParameters
    prompt_logprobs: LogprobOptions | None = None
    prompt_logprobs_start: int = 0
    num_beam_candidates: int = 0
    tenant: str = ""


@dataclass(slots=True)
class ForkRow:
    """A row that begins as a copy of another one."""

    row: int
    source_row: int
    sequence_index: int


@dataclass(slots=True)
class Plan:
    """One step. R rows compute, A rows sample, P get a token that the core has chosen, X block tables
    change, C blocks are copied, O swapped out, I swapped in, U states restored, V saved.

    No copy reads a block that another copy of the plan writes, and none writes where another does.
    """

    step: int = 0
    removed_rows: list[int] = field(default_factory=list)
    new_rows: list[NewRow] = field(default_factory=list)
    forks: list[ForkRow] = field(default_factory=list)
    table_rows: list[int] = field(default_factory=list)  # [X]
    table_starts: list[int] = field(default_factory=list)  # [X]
    table_counts: list[int] = field(default_factory=list)  # [X]
    table_blocks: list[int] = field(default_factory=list)  # [sum of table_counts]
    copy_sources: list[int] = field(default_factory=list)  # [C]
    copy_targets: list[int] = field(default_factory=list)  # [C]
    rows: list[int] = field(default_factory=list)  # [R]
    starts: list[int] = field(default_factory=list)  # [R]
    counts: list[int] = field(default_factory=list)  # [R]
    sample_rows: list[int] = field(default_factory=list)  # [A]
    sample_sources: list[int] = field(default_factory=list)  # [A]
    sample_counts: list[int] = field(default_factory=list)  # [A] at least 1; empty: 1 each
    append_rows: list[int] = field(default_factory=list)  # [P]
    append_token_ids: list[int] = field(default_factory=list)  # [P]
    swap_out_blocks: list[int] = field(default_factory=list)  # [O]
    swap_out_host_blocks: list[int] = field(default_factory=list)  # [O]
    swap_in_host_blocks: list[int] = field(default_factory=list)  # [I]
    swap_in_blocks: list[int] = field(default_factory=list)  # [I]
    restore_rows: list[int] = field(default_factory=list)  # [U]
    restore_checkpoints: list[int] = field(default_factory=list)  # [U]
    save_rows: list[int] = field(default_factory=list)  # [V]
    save_positions: list[int] = field(default_factory=list)  # [V]
    save_checkpoints: list[int] = field(default_factory=list)  # [V]
    encode: list[MediaItem] = field(default_factory=list)
    forgotten_media: list[bytes] = field(default_factory=list)  # digests
    micro_batch: bool = False  # the next plan may begin before its tokens are known

    _packed_starts: bytes = field(default=b"", init=False, repr=False, compare=False)

    def packed_starts(self) -> bytes:
        """The column `starts`, packed once for the crash journal and the worker. The plan is complete."""
        self._packed_starts = self._packed_starts or pack_u32(self.starts)
        return self._packed_starts

    @property
    def num_extra_samples(self) -> int:
        """Tokens that the plan samples beyond one for each of its sample_rows."""
        return sum(self.sample_counts) - len(self.sample_counts)

    def change_table(self, row: int, start: int, blocks: list[int]) -> None:
        """Replaces the row's block table from index `start` on by `blocks`."""
        self.table_rows.append(row)
        self.table_starts.append(start)
        self.table_counts.append(len(blocks))
        self.table_blocks += blocks

    def copy_block(self, source: int, target: int) -> None:
        """Copies the content of one block to another before the rows compute."""
        self.copy_sources.append(source)
        self.copy_targets.append(target)

    def restore_state(self, row: int, checkpoint: int) -> None:
        """Has a row begin with the state of a checkpoint, which an earlier plan has saved."""
        self.restore_rows.append(row)
        self.restore_checkpoints.append(checkpoint)

    def save_state(self, row: int, position: int, checkpoint: int) -> None:
        """Saves the state of a row behind its first `position` tokens, of which the plan computes the last
        one."""
        self.save_rows.append(row)
        self.save_positions.append(position)
        self.save_checkpoints.append(checkpoint)


_COLUMNS = tuple(
    field.name
    for field in worker_pb2.StepPlan.DESCRIPTOR.fields
    if field.type == field.TYPE_BYTES and field.name not in ("starts", "forgotten_media")
)
"""Names of lists of numbers in a Plan that are columns in a StepPlan."""


def encode_plan(plan: Plan) -> worker_pb2.StepPlan:
    """Encodes a plan. Most columns are empty in most steps, and cost nothing then."""
    message = worker_pb2.StepPlan(step=plan.step, starts=plan.packed_starts(), micro_batch=plan.micro_batch)
    for name in _COLUMNS:
        if numbers := getattr(plan, name):
            setattr(message, name, pack_u32(numbers))
    if plan.new_rows:
        message.new_rows.extend(map(_encode_new_row, plan.new_rows))
    for fork in plan.forks:
        message.forks.add(row=fork.row, source_row=fork.source_row, sequence_index=fork.sequence_index)
    if plan.forgotten_media:
        message.forgotten_media = b"".join(plan.forgotten_media)
    for item in plan.encode:
        message.encode.add(kind=item.kind, shape=item.shape, data=item.data, digest=item.digest)
    return message


def _encode_new_row(new: NewRow) -> worker_pb2.NewRow:
    row_adapter, adapter = None, new.parameters.adapter
    if adapter is not None:
        row_adapter = worker_pb2.RowAdapter(
            digest=adapter.digest, start=adapter.start, virtual_tokens=adapter.virtual_tokens
        )
    return worker_pb2.NewRow(
        row=new.row,
        token_ids=pack_u32(new.token_ids),
        prompt_len=new.prompt_len,
        blocks=pack_u32(new.blocks),
        sequence_index=new.sequence_index,
        sampling=new.parameters.sampling,
        min_tokens=new.parameters.min_tokens,
        stop_token_ids=new.parameters.stop_token_ids,
        bad_words=[TokenIds(ids=word) for word in new.parameters.bad_words],
        logprobs=new.parameters.logprobs,
        prompt_logprobs=new.prompt_logprobs,
        prompt_logprobs_start=new.prompt_logprobs_start,
        num_beam_candidates=new.num_beam_candidates,
        grammar=new.parameters.grammar,
        tenant=new.tenant,
        pooling=new.parameters.pooling,
        embeddings=new.parameters.embeddings,
        adapter=row_adapter,
        media=[
            engine_pb2.MediaItem(
                kind=item.kind, shape=item.shape, digest=item.digest, positions=pack_u32(item.positions)
            )
            for item in new.parameters.media
        ],
    )
