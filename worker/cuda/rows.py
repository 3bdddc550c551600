"""Rows on the device: tokens and block tables. The host's rows (worker.step.rows) lack the sampled tokens.

    tokens       [rows, L] int32     prompt, then output: sampled tokens are appended here, by a kernel;
                                     L: the context, and at least one token that is never computed
    blocks       [rows, N] int32     block tables
    lengths      [rows] int32        tokens of each row
    prompt_lens  [rows] int32

All of it is one array, so that the changes of a plan are one copy from the host and one launch that scatters
segments of it. Forked rows take a second launch, which copies segments on the device. Decoding changes one
entry of a row's block table in every S-th step, and nothing else.
"""

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers
from kernels.triton_ops import TritonOps
from pagewire.internal.v1 import worker_pb2
from worker.cuda.device import Device
from worker.step.plan_reader import Step
from worker.step.rows import RowTable, column

ALIGNMENT = 16
"""Parts of an array begin at multiples of so many numbers, 64 bytes. Triton compiles a kernel once more for
pointers that are not multiples of 16 bytes."""


def aligned(count: int) -> int:
    """Rounds up to a multiple of ALIGNMENT."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def state_numbers(max_num_rows: int, max_model_len: int, block_size: int) -> int:
    """Returns the size of the rows on the device, in numbers of 4 bytes."""
    width, length = -(-max_model_len // block_size), aligned(max_model_len + 1)
    return sum(map(aligned, (max_num_rows * length, max_num_rows * width, max_num_rows, max_num_rows)))


class DeviceRows:
    """The copy of a row table on the device."""

    def __init__(self, rows: RowTable, device: Device) -> None:
        self._rows, self._device = rows, device
        count, (length, width) = rows.max_num_rows, (aligned(rows.max_model_len + 1), rows.blocks.shape[1])
        sizes = count * length, count * width, count, count
        begins = np.cumsum([0, *map(aligned, sizes)]).tolist()
        self._state = torch.zeros(begins[-1], dtype=torch.int32, device=device.place)
        parts = [self._state[begin : begin + size] for begin, size in zip(begins[:-1], sizes, strict=True)]
        self.tokens, self.blocks = parts[0].view(count, length), parts[1].view(count, width)
        self.lengths, self.prompt_lens = parts[2], parts[3]
        self._blocks_at, self._lengths_at, self._prompts_at = begins[1:4]

    def update(self, plan: worker_pb2.StepPlan, appended: list[int]) -> None:
        """Uploads what the plan changed in the host's rows. appended: rows that the core appended to."""
        segments = _Segments()
        for new in plan.new_rows:
            segments.put(
                self._token_at(new.row), self._rows.token_ids[new.row, : self._rows.num_tokens[new.row]]
            )
            self._put_all_but_tokens(segments, new.row)
        for fork in plan.forks:
            self._put_all_but_tokens(segments, fork.row)
        if plan.table_rows:
            columns = (column(plan.table_rows), column(plan.table_starts), column(plan.table_counts))
            for row, start, count in zip(*(each.tolist() for each in columns), strict=True):
                at = self._blocks_at + row * self.blocks.shape[1] + start
                segments.put(at, self._rows.blocks[row, start : start + count])
        if plan.forks:  # after the tokens of new rows, and before those that are appended to forks
            self._write(segments)
            self._copy_tokens(plan)
            segments = _Segments()
        for row in appended:
            last = int(self._rows.num_tokens[row]) - 1
            segments.put(self._token_at(row) + last, self._rows.token_ids[row, last : last + 1])
            segments.put(self._lengths_at + row, self._rows.num_tokens[row : row + 1])
        self._write(segments)

    def write_drafts(self, step: Step) -> None:
        """Uploads the drafted tokens of a step, which are in the host's rows. Lengths stay as they are:
        sampled tokens are appended in their place."""
        assert step.num_logits is not None
        ends = (step.starts + step.counts)[step.sample_sources]
        segments = _Segments()
        columns = step.sample_rows, ends - step.num_logits + 1, ends
        for row, start, end in zip(*(each.tolist() for each in columns), strict=True):
            if start < end:
                segments.put(self._token_at(row) + start, self._rows.token_ids[row, start:end])
        self._write(segments)

    def append(self, rows: torch.Tensor, sampled: torch.Tensor) -> None:
        """Appends sampled tokens to rows without the host. rows: [A] int32; sampled: [A] int64, negative:
        none."""
        TritonOps.append_tokens(sampled, rows, self.tokens, self.lengths)

    def _token_at(self, row: int) -> int:
        return row * self.tokens.shape[1]

    def _put_all_but_tokens(self, segments: "_Segments", row: int) -> None:
        rows = self._rows
        segments.put(self._blocks_at + row * self.blocks.shape[1], rows.blocks[row, : rows.num_blocks[row]])
        segments.put(self._lengths_at + row, rows.num_tokens[row : row + 1])
        segments.put(self._prompts_at + row, rows.prompt_lens[row : row + 1])

    def _copy_tokens(self, plan: worker_pb2.StepPlan) -> None:
        """Copies the tokens of forks. A fork of a fork reads from the root, since all are copied at once."""
        roots: dict[int, int] = {}
        for fork in plan.forks:
            roots[fork.row] = roots.get(fork.source_row, fork.source_row)
        sources, targets = (
            np.array(rows) * self.tokens.shape[1] for rows in (list(roots.values()), list(roots))
        )
        counts = self._rows.num_tokens[list(roots)]
        columns = [self._device.send(values.astype(np.int32)) for values in (sources, targets, counts)]
        TritonOps.copy_segments(self._state, self._state, *columns)

    def _write(self, segments: "_Segments") -> None:
        if not segments.values:
            return
        count, pitch, staged = segments.staged()
        sent = self._device.send(staged)
        starts, targets, counts = (sent[pitch * i : pitch * i + count] for i in range(3))
        TritonOps.copy_segments(sent[3 * pitch :], self._state, starts, targets, counts)


class _Segments:
    """Segments of numbers to write to the state."""

    def __init__(self) -> None:
        self.targets: list[int] = []
        self.values: list[Integers] = []

    def put(self, target: int, values: Integers) -> None:
        """Adds values, written from index `target` on. They are read by staged(), not now."""
        self.targets.append(target)
        self.values.append(values)

    def staged(self) -> tuple[int, int, Integers]:
        """Returns the number of segments X, the pitch of columns, and one array: starts, targets and counts,
        [X] each, then the values that starts index."""
        pitch, counts = aligned(len(self.targets)), [len(values) for values in self.values]
        staged = np.zeros(3 * pitch + sum(counts), np.int32)
        staged[: len(counts)] = np.cumsum([0, *counts[:-1]])
        staged[pitch : pitch + len(counts)] = self.targets
        staged[2 * pitch : 2 * pitch + len(counts)] = counts
        np.concatenate(self.values, out=staged[3 * pitch :], casting="same_kind")
        return len(counts), pitch, staged
