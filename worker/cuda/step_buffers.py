"""A step's inputs on the device, at fixed addresses, as captured graphs need them.

Two steps that decode the same number of rows differ in a few columns of numbers, sent from pinned memory in
one copy. A kernel makes token ids, positions, slots, lengths and block tables from them and from the rows
(kernels.triton.step.prepare_inputs). Steps run one after another in one stream, so one set of buffers serves
all of them, those in flight included.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from kernels.api import InputBatch, KVCacheSpec, Spans
from kernels.ops.attention.ragged import Integers, ranges
from kernels.triton_ops import TritonOps
from worker.cuda.adapter_columns import AdapterColumns
from worker.cuda.device import Device
from worker.cuda.rows import DeviceRows, aligned
from worker.step.grid_positions import AXES
from worker.step.plan_reader import Step
from worker.step.rows import RowTable

ROWS, STARTS, COUNTS, SAMPLE_ROWS, LOGIT_TOKENS, NUM_ROWS, SAVES = range(7)
"""Indexes of columns. Where layers keep a state per row there are four of SAVES: kernels.ops.states.spans."""
SAVE_COLUMNS = 4


@dataclass(frozen=True)
class StepShape:
    """The sizes that the launches of a step depend on."""

    rows: int  # R, with padding
    tokens: int  # T, with padding


@dataclass(frozen=True)
class StepLayout:
    """The positions of a step's rows in it."""

    shape: StepShape  # without padding
    row_starts: Integers  # [R] index into T of each row's first token
    num_samples: int  # A
    logit_tokens: Integers  # index into T of those after which they sample: A, or more with drafts


class StepBuffers:
    """Columns and inputs of one step on the device."""

    def __init__(
        self,
        host: RowTable,
        rows: DeviceRows,
        device: Device,
        max_num_tokens: int,
        specs: Iterable[KVCacheSpec],
        most_queries: int = 1,
        has_states: bool = False,
        max_adapters: int = 0,
        adapted_parts: Sequence[int] = (),
        *,
        has_token_types: bool = False,
        has_grid_positions: bool = False,
    ) -> None:
        """specs: each kind of layer of the model. most_queries: tokens of a row that decodes, 1 and its
        drafts. has_states: layers keep a state per row. max_adapters: that a step may have. adapted_parts:
        see DeviceAdapters. has_token_types: the model reads the types of tokens. has_grid_positions: it
        reads positions of three axes."""
        count = host.max_num_rows
        self._no_row, self._device, self._has_states = count, device, has_states
        tokens, most_rows = max(max_num_tokens, count), count + 1  # one more, that has the padding of a graph
        pitch = aligned(max(most_rows, min(tokens, count * most_queries)))
        columns = SAVES + (SAVE_COLUMNS if has_states else 0)
        self._columns = torch.zeros((columns, pitch), dtype=torch.int32, device=device.place)
        self.adapters, self.logit_adapters = (
            AdapterColumns(device, size, max_adapters, adapted_parts) for size in (tokens, pitch)
        )
        """Of tokens, and of what they sample after."""
        self._token_types = None
        if has_token_types:
            self._token_types = torch.zeros(tokens, dtype=torch.int64, device=device.place)
        self._grid_positions = None
        if has_grid_positions:
            self._grid_positions = torch.zeros(tokens, AXES, dtype=torch.int64, device=device.place)
        table = rows.tokens, rows.blocks, rows.prompt_lens
        self._inputs = TritonOps.step_inputs(
            table, (most_rows, tokens), host.max_model_len, host.block_size, specs
        )

    def load(self, step: Step, spans: Spans | None = None) -> StepLayout:
        """Uploads the columns of the next step to be launched. spans: its rows, where layers keep states."""
        ends = np.cumsum(step.counts)  # of each row's tokens
        logit_tokens: Integers = ends[step.sample_sources] - 1
        if step.num_logits is not None:
            logit_tokens = ranges(logit_tokens - step.num_logits + 1, step.num_logits)[1]
        columns = self._padding()
        for index, values in (
            (ROWS, step.rows),
            (STARTS, step.starts),
            (COUNTS, step.counts),
            (SAMPLE_ROWS, step.sample_rows),
            (LOGIT_TOKENS, logit_tokens),
            (NUM_ROWS, [len(ends)]),
        ):
            columns[index, : len(values)] = values
        if spans is not None:
            columns[SAVES:, : len(ends)] = spans.saves.T
        self._device.send_into(self._columns, columns)
        shape = StepShape(len(ends), int(step.counts.sum()))
        return StepLayout(shape, ends - step.counts, len(step.sample_rows), logit_tokens)

    def load_token_types(self, types: Integers | None, count: int) -> None:
        """Uploads the types of the tokens of the next step to be launched, where the model reads them. types:
        [count]; None: all are 0."""
        if self._token_types is not None:
            values = np.zeros(count, np.int64) if types is None else types
            self._device.send_into(self._token_types[:count], values)

    def load_grid_positions(self, positions: Integers | None) -> None:
        """Uploads the positions of the tokens of the next step to be launched [3, T], where the model reads
        them."""
        if self._grid_positions is not None and positions is not None:
            target = self._grid_positions[: positions.shape[1]]
            self._device.send_into(target, np.ascontiguousarray(positions.T))

    def clear(self) -> None:
        """Uploads the columns of a step of no rows."""
        self._device.send_into(self._columns, self._padding())

    def _padding(self) -> npt.NDArray[np.int32]:
        """Returns columns without rows. What samples there is no row of the table."""
        columns = np.zeros(self._columns.shape, np.int32)
        columns[SAMPLE_ROWS] = self._no_row
        return columns

    def graph_shape(self, size: int) -> StepShape:
        """Returns the shape of a graph for steps of up to `size` tokens, of any number of rows."""
        return StepShape(min(size, self._inputs.most_rows), size)

    def sample_rows(self, count: int) -> torch.Tensor:
        """Returns the rows that sample, [count] int32, followed by max_num_rows, which is no row."""
        return self._columns[SAMPLE_ROWS, :count]

    def logit_tokens(self, count: int) -> torch.Tensor:
        """Returns the index [count] int32 into T of the tokens that they sample after, followed by 0."""
        return self._columns[LOGIT_TOKENS, :count]

    def batch(self, shape: StepShape, is_adapted: bool) -> InputBatch:
        """Returns the inputs of the step whose columns are on the device. is_adapted: tokens have
        adapters."""
        columns, num_rows = self._columns[:, : shape.rows], self._columns[NUM_ROWS, :1]
        saves = columns[SAVES:] if self._has_states else None
        batch = self._inputs.batch(
            columns[ROWS], columns[STARTS], columns[COUNTS], num_rows, shape.tokens, saves
        )
        if self._token_types is not None:
            batch = replace(batch, token_types=self._token_types[: shape.tokens])
        if self._grid_positions is not None:
            batch = replace(batch, grid_positions=self._grid_positions[: shape.tokens].t())
        return replace(batch, adapters=self.adapters.of(shape.tokens)) if is_adapted else batch
