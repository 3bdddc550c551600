"""Reads a step plan: applies its changes to the rows, and checks what it computes against them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from worker.step.rows import RowTable, column, require

NO_TOKEN_COLUMN = 0xFFFFFFFF
"""In StepResult.token_ids: the row has no token."""

_NOTHING = np.empty(0, np.int64)
T = TypeVar("T")

PlanCheck = Callable[[int, int, int], tuple[int, int, bool] | None]
"""Called with the address of a step's columns, R and A. Returns its Measures; None: it does not fit the
rows. In a benchmark loop check_by_numpy() costs little; in service a model's weights have evicted the caches
since the last step, and thirty calls of numpy then take considerably longer than a compiled one."""


class RowFeature(Protocol):
    """State that is kept by row beside the row table, such as a sampler's."""

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. output_ids: output that the sequence already has."""

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another."""

    def remove_row(self, row: int) -> None:
        """Ends a row."""


class ValueByRow(RowFeature, Generic[T]):
    """A value of some rows: a fork has that of its source."""

    def __init__(self) -> None:
        self._by_row: dict[int, T] = {}

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        if source_row in self._by_row:
            self._by_row[row] = self._by_row[source_row]

    def remove_row(self, row: int) -> None:
        self._by_row.pop(row, None)


class RowStops(ValueByRow[frozenset[int]]):
    """The tokens that may end each row."""

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        if new.stop_token_ids:
            self._by_row[row] = frozenset(new.stop_token_ids)

    def may_end(self, row: int, token: int) -> bool:
        """Whether a row ends with this token if it is long enough."""
        return token in self._by_row.get(row, ())


class NoAdapters(ValueByRow[None]):
    """Refuses rows with adapters, where none can be loaded."""

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        require(not new.HasField("adapter"), f"row {row} has an adapter, and none can be loaded")


class NoMedia(ValueByRow[None]):
    """Refuses rows with media, where nothing is encoded."""

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        require(not new.media, f"row {row} has media, and nothing is encoded")


class DraftedStep(Protocol):
    """What drafts change of a plan."""

    @property
    def counts(self) -> Integers:
        """[R] tokens to compute."""

    @property
    def num_logits(self) -> Integers:
        pass


class Measures(NamedTuple):
    """Sizes of a step that fits the rows."""

    num_tokens: int
    context: int  # the largest position that a row computes, and one
    in_order: bool  # each row that computes samples, in the same order


@dataclass(slots=True)
class Step:
    """What a plan computes, once its changes have been applied. The int64 columns are contiguous in memory,
    in this order."""

    rows: Integers  # [R]
    starts: Integers  # [R]
    counts: Integers  # [R]
    sample_rows: Integers  # [A]
    sample_sources: Integers  # [A]: index into rows
    address: int  # of the first column
    measures: Measures
    num_logits: Integers | None = None
    """[A] positions, the last ones that each computes, from which a row samples; None: 1 each."""

    @property
    def has_forks(self) -> bool:
        """Whether a row samples from the logits of another one."""
        return not self.measures.in_order and bool((self.rows[self.sample_sources] != self.sample_rows).any())

    @property
    def num_sampled_positions(self) -> int:
        """Logits that the step computes."""
        return len(self.sample_rows) if self.num_logits is None else int(self.num_logits.sum())


@dataclass(frozen=True)
class Swaps:
    """Blocks to copy to host memory [O] and back [I]."""

    out_blocks: Integers  # [O]
    out_host_blocks: Integers  # [O]
    in_host_blocks: Integers  # [I]
    in_blocks: Integers  # [I]

    def __len__(self) -> int:
        """Returns the number of copies."""
        return len(self.out_blocks) + len(self.in_blocks)


def apply_changes(plan: worker_pb2.StepPlan, rows: RowTable, features: Sequence[RowFeature]) -> None:
    """Changes rows, features and block tables, in the order of the contract. Raises PlanError."""
    for row in column(plan.removed_rows).tolist() if plan.removed_rows else ():
        rows.remove(row)
        for feature in features:
            feature.remove_row(row)
    for new in plan.new_rows:
        prompt_ids, output_ids = rows.add(new)
        for feature in features:
            feature.add_row(new.row, new, prompt_ids, output_ids)
    for fork in plan.forks:
        rows.fork(fork.row, fork.source_row)
        for feature in features:
            feature.fork_row(fork.row, fork.source_row, fork.sequence_index)
    if plan.table_rows:
        rows.set_blocks(
            column(plan.table_rows),
            column(plan.table_starts),
            column(plan.table_counts),
            column(plan.table_blocks),
        )


def append_tokens(plan: worker_pb2.StepPlan, rows: RowTable) -> tuple[list[int], Integers]:
    """Appends the tokens that the core has chosen for beams, and returns rows and tokens, both [P].

    Call it after apply_changes(). Raises PlanError.
    """
    if not (plan.append_rows or plan.append_token_ids):  # as in most plans
        return [], _NOTHING
    appended, token_ids = column(plan.append_rows), column(plan.append_token_ids)
    rows.check_append(appended, token_ids)
    rows.append(appended, token_ids)
    return appended.tolist(), token_ids


def block_copies(plan: worker_pb2.StepPlan, num_blocks: int) -> tuple[Integers, Integers]:
    """Returns the blocks to copy from and to, both [C]. Raises PlanError."""
    if not (plan.copy_sources or plan.copy_targets):  # as in most plans
        return _NOTHING, _NOTHING
    sources, targets = column(plan.copy_sources), column(plan.copy_targets)
    require(len(sources) == len(targets), "copy_sources and copy_targets differ in length")
    for blocks in (sources, targets):
        require((blocks < num_blocks).all(), "a copied block is out of range")
    return sources, targets


def read_swaps(plan: worker_pb2.StepPlan, num_blocks: int, num_host_blocks: int) -> Swaps | None:
    """Returns the copies to host memory and back; None: there are none. Raises PlanError."""
    if not (
        plan.swap_out_blocks or plan.swap_out_host_blocks or plan.swap_in_host_blocks or plan.swap_in_blocks
    ):
        return None
    swaps = Swaps(
        column(plan.swap_out_blocks),
        column(plan.swap_out_host_blocks),
        column(plan.swap_in_host_blocks),
        column(plan.swap_in_blocks),
    )
    outs, ins = (swaps.out_blocks, swaps.out_host_blocks), (swaps.in_host_blocks, swaps.in_blocks)
    for name, sources, targets in (("out", *outs), ("in", *ins)):
        require(len(sources) == len(targets), f"the columns of blocks to swap {name} differ in length")
        require(len(np.unique(targets)) == len(targets), f"two blocks are swapped {name} to one place")
    for blocks in (swaps.out_blocks, swaps.in_blocks):
        require((blocks < num_blocks).all(), "a swapped block is out of range")
    for blocks in (swaps.out_host_blocks, swaps.in_host_blocks):
        require((blocks < num_host_blocks).all(), "a host block is out of range")
    overlap = np.intersect1d(swaps.out_host_blocks, swaps.in_host_blocks)
    require(not len(overlap), "a host block is written and read in one plan")
    return swaps


def steps_of_burst(plan: worker_pb2.StepPlan) -> Iterator[worker_pb2.StepPlan]:
    """Yields the steps of a plan whose rows sample several tokens each, as plans of one token for each row.
    The first has all changes of the plan. Raises PlanError."""
    counts, starts = column(plan.sample_counts), column(plan.starts)
    require(plan.counts == plan.sample_counts, "the plan has room for drafts, and nothing drafts")
    require(len(set(counts.tolist())) == 1, "the rows of a burst sample different numbers of tokens")
    first, ones = worker_pb2.StepPlan(), pack_u32([1] * len(starts))
    first.CopyFrom(plan)
    first.counts = ones
    first.ClearField("sample_counts")
    yield first
    for step in range(1, int(counts[0])):
        yield worker_pb2.StepPlan(
            step=plan.step,
            rows=plan.rows,
            starts=pack_u32((starts + step).tolist()),
            counts=ones,
            sample_rows=plan.sample_rows,
            sample_sources=plan.sample_sources,
        )


def token_column(tokens: Integers) -> bytes:
    """Encodes tokens [A] for StepResult.token_ids; -1, no token, becomes NO_TOKEN_COLUMN."""
    return tokens.astype("<u4").tobytes()


def read_step(
    plan: worker_pb2.StepPlan,
    rows: RowTable,
    max_num_batched_tokens: int,
    check: PlanCheck | None = None,
    drafts: DraftedStep | None = None,
) -> Step:
    """Returns what the plan computes. Call it after apply_changes(). Raises PlanError when it does not fit.

    check: None where the check is not compiled. drafts: of a plan with sample_counts, appended to the rows.
    """
    computing, sampling = (plan.rows, plan.starts, plan.counts), (plan.sample_rows, plan.sample_sources)
    require(len(set(map(len, computing))) == 1, "rows, starts and counts differ in length")
    require(len(set(map(len, sampling))) == 1, "samples and their sources differ in length")
    require(drafts is not None or not plan.sample_counts, "the plan has room for drafts, and nothing drafts")
    columns = column(b"".join(computing + sampling))
    num_rows = len(plan.rows) // 4
    if drafts is not None:
        columns[2 * num_rows : 3 * num_rows] = drafts.counts
    num_logits = None if drafts is None else drafts.num_logits
    return checked_step(columns, num_rows, rows, max_num_batched_tokens, check, num_logits)


def checked_step(
    columns: Integers,
    num_rows: int,
    rows: RowTable,
    max_num_batched_tokens: int,
    check: PlanCheck | None = None,
    num_logits: Integers | None = None,
) -> Step:
    """Returns the step of these columns, contiguous int64: rows, starts, counts [R] of num_rows, then
    sample_rows and sample_sources [A]. Raises PlanError when it does not fit the rows.

    check: see read_step(). num_logits: see Step.
    """
    address, num_samples = columns.ctypes.data, (len(columns) - 3 * num_rows) // 2
    sizes = None if check is None else check(address, num_rows, num_samples)
    # By numpy for the reason, too: it raises that.
    measures = Measures(*sizes) if sizes else check_by_numpy(rows, columns, num_rows, num_samples)
    require(measures.num_tokens <= max_num_batched_tokens, "more tokens than max_num_batched_tokens")
    computing_rows, starts, counts = columns[: 3 * num_rows].reshape(3, num_rows)
    sample_rows, sources = columns[3 * num_rows :].reshape(2, num_samples)
    return Step(computing_rows, starts, counts, sample_rows, sources, address, measures, num_logits)


def check_by_numpy(rows: RowTable, columns: Integers, num_rows: int, num_samples: int) -> Measures:
    """Checks a step and returns its sizes; see checked_step(). Raises PlanError."""
    computing, starts, counts = columns[: 3 * num_rows].reshape(3, num_rows)
    sampling, sources = columns[3 * num_rows :].reshape(2, num_samples)
    ends = starts + counts
    rows.check_compute(computing, starts, counts)
    rows.check_sample(sampling, sources, computing, ends)
    in_order = num_rows == num_samples and bool((sources == np.arange(num_samples)).all())
    return Measures(int(counts.sum()), int(ends.max(initial=0)), in_order)
