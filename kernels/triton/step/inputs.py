"""The inputs of a step on the device, where captured graphs keep them."""

from collections.abc import Iterable

import torch

from kernels.attention.kv_cache_spec import KVCacheSpec
from kernels.attention.paged_plan import DeviceStep
from kernels.batch import InputBatch
from kernels.ops.states.spans import DeviceSpans
from kernels.triton.attention.paged_attention import PagedBatch
from kernels.triton.attention.paged_kernels import paged_kernels
from kernels.triton.step.prepare_inputs import StepInputs, prepare_inputs


class PagedInputs:
    """Buffers of the largest step, and the batches whose launches write to them."""

    def __init__(
        self,
        table: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        sizes: tuple[int, int],
        max_length: int,
        block_size: int,
        specs: Iterable[KVCacheSpec],
    ) -> None:
        """table: tokens [rows, L], blocks [rows, N] and prompt lengths [rows], int32, of all rows. sizes: the
        most rows and tokens of a step, with padding. max_length: positions of a row. specs: each kind of
        layer of the model."""
        self.most_rows, tokens = sizes
        self._table, self._block_size, self._specs = table, block_size, frozenset(specs)
        self._kernels = paged_kernels()
        self._max_length, width, place = max_length, table[1].shape[1], table[0].device
        most_heads = max(spec.num_kv_heads for spec in self._specs)
        self._unit_scales = self._kernels.unit_scales(most_heads, place)
        longs = (torch.zeros(tokens, dtype=torch.int64, device=place) for _ in range(4))
        shapes = (self.most_rows + 1,), (self.most_rows,), (self.most_rows, width)
        self._inputs = StepInputs(
            *longs, *(torch.zeros(shape, dtype=torch.int32, device=place) for shape in shapes)
        )

    def batch(
        self,
        rows: torch.Tensor,
        starts: torch.Tensor,
        counts: torch.Tensor,
        num_rows: torch.Tensor,
        num_tokens: int,
        saves: torch.Tensor | None = None,
    ) -> InputBatch:
        """Launches what makes the inputs. rows, starts, counts: [R] int32 on the device, of which the first
        num_rows, [1], are no padding. num_tokens: T, with padding. saves: see DeviceSpans; None: no layer
        keeps a state per row."""
        inputs = self._views(len(rows), num_tokens)
        prepare_inputs(rows, starts, counts, num_rows, *self._table, self._block_size, inputs)
        paged = PagedBatch(
            inputs.query_starts,
            inputs.lengths,
            inputs.block_tables,
            self._max_length,  # of any step, since graphs repeat launches
        )
        step = DeviceStep(self._kernels, paged, inputs.slots, self._unit_scales)
        spans = None if saves is None else DeviceSpans(rows, starts, num_rows, inputs.query_starts, saves)
        return InputBatch(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            prompt_lens=inputs.prompts,
            attention={spec: spec.paged_plan(step) for spec in self._specs},
            spans=spans,
        )

    def _views(self, rows: int, tokens: int) -> StepInputs:
        whole = self._inputs
        return StepInputs(
            token_ids=whole.token_ids[:tokens],
            positions=whole.positions[:tokens],
            slots=whole.slots[:tokens],
            prompts=whole.prompts[:tokens],
            query_starts=whole.query_starts[: rows + 1],
            lengths=whole.lengths[:rows],
            block_tables=whole.block_tables[:rows],
        )
