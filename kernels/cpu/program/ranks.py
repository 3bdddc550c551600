"""Ranks in a program: what they exchange (kernels.cpu.runtime.rank_exchange), and what each makes of the
parts of all. A rank's program may be another one than that of the others, for more tokens or
with other operations, as long as it exchanges the same."""

from typing import Any

import numpy as np
import torch

from kernels.batch import InputBatch
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.compiler.records import Operation
from kernels.cpu.elementwise.records import AddPartsRecord, FindOwnersRecord, JoinPartsRecord
from kernels.cpu.matmul.int8 import QuantizedWeight
from kernels.cpu.matmul.matrix import Allocate
from kernels.cpu.matmul.records import LargestOfPartsRecord, LargestOfRowsRecord, ScaledSumsRecord
from kernels.cpu.program.program import ROWS, CannotRecord, Records, StepProgram
from kernels.cpu.program.writer import ProgramWriter, check_unpadded
from kernels.cpu.runtime.grain import row_grain
from kernels.cpu.runtime.records import ExchangeRowsRecord
from kernels.cpu_ops import CpuOps
from kernels.ops.layers.adapters import StepAdapters
from kernels.ops.sampling.columns import UNKNOWN
from kernels.torch_ops import PairProducts, RankGroup, Shares

_NUM_ROWS = ExchangeRowsRecord.word("num_rows")


class RankRecords:
    """The records of one rank's program. M tokens at most."""

    def __init__(self, ops: ProgramWriter, group: RankGroup) -> None:
        """Raises CannotRecord."""
        if group.link is None:
            raise CannotRecord("ranks of this kind exchange by calls of Python")
        from kernels.cpu.elementwise import rank_parts  # compiles, the first time
        from kernels.cpu.runtime import rank_exchange

        self._kernels, self._moves = rank_parts, rank_exchange
        self.group = group
        self._ops = ops
        self._exchanges = np.zeros((0, 2), np.int64)  # index, and rows for each token
        ops.on_batch(lambda batch, records: self.write_tokens(records, len(batch.token_ids)))

    def write_tokens(self, records: Records, tokens: int, begin: int = 0) -> None:
        """Says of how many tokens the exchanges from index `begin` on have rows."""
        index, factor = self._exchanges[self._exchanges[:, 0] >= begin].T
        records[index, ROWS], records[index, _NUM_ROWS] = min(1, tokens), factor * tokens

    def exchange(self, x: torch.Tensor, factor: int = 1, width: int = 0) -> torch.Tensor:
        """Puts the exchange of x [M * factor, N]. Returns [ranks, M * factor, N]. width: the largest N of all
        ranks, where they differ: then the rows of a part are as long as those of its rank, in rows of this
        width; 0: they do not."""
        parts = self._ops.empty((self.group.size, len(x), width or x.shape[1]), x.dtype)
        self._put(self._moves.exchange_rows, x, parts, factor, self.group.size)
        return parts

    def tell(self, x: torch.Tensor) -> None:
        """Puts the exchange by which x [A] of rank 0 becomes that of all ranks."""
        self._put(self._moves.exchange_rows, x[:, None], x[None, :, None], 1, 1)

    def send(self, x: torch.Tensor) -> None:
        """Puts what copies x [M, N] to the other rank of two, and does not wait for it."""
        self._put(self._moves.send_rows, x, x[None], 1, 0)

    def receive(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Puts what copies [M, N] from rank 0 of two, and returns it."""
        out = self._ops.empty((self._ops.most_tokens, width), dtype, lasts=True)
        self._put(self._moves.receive_rows, out[:, :0], out[None], 1, 1)
        return out

    def _put(
        self, move: Operation[Any], x: torch.Tensor, parts: torch.Tensor, factor: int, count: int
    ) -> None:
        """x: [M * factor, N] of this rank. parts: [ranks, M * factor, N], of which the first `count` get
        those of the ranks."""
        record = ExchangeRowsRecord(
            exchange=self.group.link.address,
            source=x.data_ptr(),
            own_bytes=x.itemsize * x.shape[1],
            row_bytes=parts.itemsize * parts.shape[2],
            num_rows=0,
            target=parts.data_ptr(),
            stride=parts.itemsize * parts.stride(0),
            parts=count,
        )
        index = self._ops.put(move, record, 1, factor=0)
        self._exchanges = np.append(self._exchanges, [[index, factor]], 0)

    def add(self, partial: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        """Puts Ops.add_partials()."""
        parts, width = self.exchange(partial), partial.shape[1]
        out = self._ops.empty(partial.shape, dtype)
        record = AddPartsRecord(
            parts=parts.data_ptr(),
            stride=parts.itemsize * parts.stride(0),
            num_parts=len(parts),
            bias=self._bias(bias),
            out=out.data_ptr(),
            width=width,
        )
        self._ops.put(self._kernels.add_parts.of(dtype), record, row_grain(width))
        return out

    def _bias(self, bias: torch.Tensor | None) -> int:
        """Returns the address of a float32 copy."""
        return 0 if bias is None else self._ops.constant(bias.float()).data_ptr()

    def integers(
        self, x: torch.Tensor, weight: QuantizedWeight, allocate: Allocate
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Puts what makes integers of x [M, K of this rank], by the largest values of whole rows. Returns
        these and the scales of x."""
        from kernels.cpu.matmul.gemm_int8_sums import largest_of_parts, largest_of_rows  # compiles

        width = x.shape[1]
        own, largest = allocate(1, torch.float32), allocate(1, torch.float32)
        of_rows = LargestOfRowsRecord(x=x.data_ptr(), out=own.data_ptr(), width=width)
        self._ops.put(largest_of_rows, of_rows, row_grain(width))
        parts = self.exchange(own)
        of_parts = LargestOfPartsRecord(
            parts=parts.data_ptr(),
            stride=parts.itemsize * parts.stride(0),
            num_parts=len(parts),
            out=largest.data_ptr(),
        )
        self._ops.put(largest_of_parts, of_parts, row_grain(1))
        return weight.integers(x, allocate, self._ops.put, largest.data_ptr())

    def scale(
        self, sums: torch.Tensor, scales: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Puts the result of sums [M, N] int32 of this rank's inputs. scales: of x."""
        from kernels.cpu.matmul.gemm_int8_sums import scaled_sums  # compiles, the first time

        parts, width = self.exchange(sums), sums.shape[1]
        out = self._ops.empty(sums.shape, weight.dtype)
        record = ScaledSumsRecord(
            parts=parts.data_ptr(),
            stride=parts.itemsize * parts.stride(0),
            num_parts=len(parts),
            scales=scales.data_ptr(),
            weight_scales=self._ops.constant(weight.scales.contiguous()).data_ptr(),
            bias=self._bias(bias),
            out=out.data_ptr(),
            width=width,
        )
        self._ops.put(scaled_sums, record, row_grain(width))
        return out

    def join(self, part: torch.Tensor, shares: Shares) -> torch.Tensor:
        """Puts Ops.join_columns()."""
        parts = self.exchange(part, width=shares.largest)
        out = self._ops.empty((len(part), shares.starts[-1]), part.dtype)
        record = JoinPartsRecord(
            parts=parts.data_ptr(),
            stride=parts.itemsize * parts.stride(0),
            num_parts=len(parts),
            part_bytes=parts.itemsize * shares.largest,
            last_bytes=parts.itemsize * (shares.starts[-1] - shares.starts[-2]),
            out=out.data_ptr(),
        )
        self._ops.put(self._kernels.join_parts, record, row_grain(out.shape[1]))
        return out

    def find_owners(
        self, ids: torch.Tensor | None, shape: tuple[int, ...], shares: Shares, other: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Puts what finds the ranks that have things, by their numbers. ids: int64 of this shape, M of them
        or a multiple; None: those are the tokens of a step. Returns the numbers among those of this rank,
        `other` where it is another's, and the indexes of rows of the parts of all ranks, [ranks, M * factor,
        ...]."""
        local, sources = (self._ops.empty(shape, torch.int64) for _ in range(2))
        record = FindOwnersRecord(
            ids=0 if ids is None else ids.data_ptr(),
            starts=self._ops.constant(torch.tensor(shares.starts)).data_ptr(),
            num_ranks=self.group.size,
            rank=self.group.rank,
            local=local.data_ptr(),
            other=other,
            sources=sources.data_ptr(),
            pitch=local.numel(),
        )
        factor = local.numel() // self._ops.most_tokens
        index = self._ops.put(self._kernels.find_owners, record, row_grain(1), factor)
        if ids is None:
            self._ops.on_batch(lambda batch, records: _write_ids(records, index, batch))
        return local, sources


def _write_ids(records: Records, index: int, batch: InputBatch) -> None:
    records[index, FindOwnersRecord.word("ids")] = batch.token_ids.data_ptr()


class RankWriter(ProgramWriter):
    """A program whose layers may exchange something with other ranks."""

    def __init__(self, ops: CpuOps, blocks: BlockKernels, most_tokens: int) -> None:
        super().__init__(ops, blocks, most_tokens)
        self._ranks: list[RankRecords] = []

    def ranks(self, group: RankGroup) -> RankRecords:
        """Returns the records of what the ranks of a group exchange. Raises CannotRecord."""
        found = next((each for each in self._ranks if each.group is group), None)
        if found is None:
            found = RankRecords(self, group)
            self._ranks.append(found)
        return found

    def begin_choice(self, records: Records, count: int, begin: int, tokens: torch.Tensor) -> None:
        """Says from how many tokens' logits the next ones are chosen, by exchanges from index `begin` on,
        whichever ranks these are among. tokens: [A] int64, of which none is known before rank 0 chooses."""
        for ranks in self._ranks:
            ranks.write_tokens(records, count, begin)
        tokens.fill_(UNKNOWN)

    def send(self, x: torch.Tensor, group: RankGroup) -> None:
        self.ranks(group).send(x.contiguous())

    def receive(self, shape: tuple[int, int], dtype: torch.dtype, group: RankGroup) -> torch.Tensor:
        return self.ranks(group).receive(shape[1], dtype)

    def add_partials(
        self, partial: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, group: RankGroup
    ) -> torch.Tensor:
        return self.ranks(group).add(partial, bias, dtype)

    def linear_over_ranks(
        self, x: torch.Tensor, weight: Any, bias: torch.Tensor | None, group: RankGroup
    ) -> torch.Tensor:
        check_unpadded(weight)
        ranks = self.ranks(group)

        def allocate(width: int, dtype: torch.dtype) -> torch.Tensor:
            return self.empty((len(x), width), dtype)

        integers, scales = ranks.integers(x.contiguous(), weight, allocate)
        sums = allocate(weight.out_features, torch.int32)
        self.put_product(weight.sums, weight.record(integers, sums, scales), weight)
        return ranks.scale(sums, scales, weight, bias)

    def join_columns(self, part: torch.Tensor, shares: Shares) -> torch.Tensor:
        return self.ranks(shares.group).join(part, shares)

    def multiply_pairs(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        chosen: torch.Tensor,
        shares: Shares,
        products: PairProducts,
        adapters: StepAdapters | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ranks, top_k = self.ranks(shares.group), chosen.shape[1]
        local, sources = ranks.find_owners(chosen, tuple(chosen.shape), shares, len(shares.held))
        y, places = products(x, weights, local, None)
        parts = ranks.exchange(self.gather(y, places, top_k), top_k)
        every = self.gather(parts.flatten(0, 1), sources, top_k)
        return every, self.constant(torch.arange(chosen.numel()).view(chosen.shape))

    def build(self, hidden: torch.Tensor) -> StepProgram:
        step = super().build(hidden)
        links = [each.group.link for each in self._ranks]

        def check() -> None:
            for link in links:
                link.check()

        step.check = check
        return step
