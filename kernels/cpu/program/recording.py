"""Records a program while the layers of a model run once on buffers.

Called one by one, operations cost more than a small model's arithmetic: there are some ten in a block. So the
operations of RecordingOps put the records of CpuOps into a program (kernels.cpu.runtime.program), and return
the buffers that their results will be in. One call then computes a step, with the same bits.

The batch that is recorded says nothing of a step: what is read of one is computed, or its address written,
before each run. Layers must leave the tensors to their operations, but for views: anything else raises
CannotRecord.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from kernels.attention.kv_cache_spec import KVCacheSpec
from kernels.attention.latent import LatentSpec
from kernels.attention.plan import LayerCache, Rotation
from kernels.batch import InputBatch
from kernels.cpu.adapters.records import AT_ONCE, AdaptRecord, PairAdaptersRecord
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.planning.kv_prefetch import KVPrefetch
from kernels.cpu.attention.records import CopyHeadsRecord
from kernels.cpu.elementwise.records import GatherRecord
from kernels.cpu.matmul.records import PackedRowsRecord
from kernels.cpu.program.attention import (
    AttentionRecords,
    RecordedAngles,
    RecordedLatentPlan,
    RecordedPlan,
    angles_of,
)
from kernels.cpu.program.buffers import ActivationBuffers
from kernels.cpu.program.experts import RecordedOrder
from kernels.cpu.program.program import ROWS, CannotRecord, Records, StepProgram
from kernels.cpu.program.ranks import RankWriter
from kernels.cpu.program.writer import check_unpadded
from kernels.cpu.runtime.grain import row_grain
from kernels.cpu.runtime.records import ProductRecord, ProgramRecord
from kernels.cpu_ops import CpuOps
from kernels.ops.layers.adapters import StepAdapters
from kernels.ops.states.spans import Spans
from kernels.torch_ops import HeadNorm, Ops, RankGroup, Shares
from kernels.wanted import Wanted

_COLUMNS, _WORDS = ProductRecord.word("columns"), ProductRecord.word("words")
_FOLLOWING, STREAM = ProductRecord.word("following"), ProductRecord.word("stream")
_SHARING = ProgramRecord.word("grain")
_REPEATABLE = 1 << 32
"""Beside the grain."""
_TOKENS, _ADAPTERS = AdaptRecord.word("tokens"), AdaptRecord.word("adapters")
_PAIR_TOKENS, _PAIR_ADAPTERS = PairAdaptersRecord.word("tokens"), PairAdaptersRecord.word("adapters")
_PAIR_COUNT = PairAdaptersRecord.word("count")
_INDEXES = PackedRowsRecord.word("indexes")
_GATHERED = GatherRecord.word("indexes")


class Recordable(Protocol):
    """A model whose layers compute by `ops`."""

    ops: Ops

    def compute_by(self, ops: Ops) -> None:
        """Has all layers compute by these operations."""
        ...


class RecordingOps(RankWriter):
    """A program in the making, for steps of at most `most_tokens`, M."""

    def __init__(self, ops: CpuOps, blocks: BlockKernels, most_tokens: int) -> None:
        super().__init__(ops, blocks, most_tokens)
        self._ops = ops
        self._attention: dict[KVCacheSpec, AttentionRecords] = {}
        self._adapted: list[int] = []  # records that apply adapters to tokens
        self._adapted_pairs: list[tuple[int, int]] = []  # and to pairs, so many for each token
        self._sorted_pairs: list[int] = []  # records that list such pairs
        self._adapted_products: dict[int, int] = {}  # records before these, and their grain

    @contextmanager
    def recording(self, model: Recordable, checks: bool = False) -> Iterator[None]:
        """What the layers of a model compute within is recorded. checks: raises CannotRecord where torch
        computes with buffers, which takes some milliseconds; a model needs it once."""
        ops = model.ops
        model.compute_by(self)
        try:
            with _OnlyViews(self.buffers) if checks else nullcontext():
                yield
        finally:
            model.compute_by(ops)

    def batch(self, specs: Iterable[KVCacheSpec]) -> InputBatch:
        """Returns the batch to record."""
        unknown = self.buffers.lasting((self.most_tokens,), torch.int64)
        plans = {spec: self._plan(spec) for spec in specs}
        return InputBatch(
            token_ids=unknown,
            positions=unknown,
            prompt_lens=unknown,
            attention=plans,
            spans=Spans.empty(1),
        )

    def _plan(self, spec: KVCacheSpec) -> RecordedPlan | RecordedLatentPlan:
        records = self.attention(spec)
        if isinstance(spec, LatentSpec):
            return RecordedLatentPlan(records, spec.rank)
        return RecordedPlan(self, records)

    def per_step(self, compute: Callable[[Any], torch.Tensor], batch: Any, width: int) -> torch.Tensor:
        out = self.buffers.lasting((self.most_tokens, width), self.dtype)

        def copy_in(batch: InputBatch, records: Records) -> None:
            out[: len(batch.token_ids)] = compute(batch)

        self.on_run(copy_in)
        return out

    def embed(
        self,
        look_up: Callable[[Any], torch.Tensor],
        batch: Any,
        width: int,
        table: Any = None,
        factor: float = 1.0,
        number: int | None = None,
        shares: Shares | None = None,
    ) -> torch.Tensor:
        """The result of a step with input embeddings, or with adapters of the lookup, is computed before the
        program runs, which then leaves out what would compute it."""
        first, of_ranks = self.next_index, table is not None and shares is not None
        found = self.buffers.lasting((self.most_tokens, width), self.dtype)
        if table is not None and shares is not None:
            found = self._embed_of_owners(table, shares, found)
        elif table is not None:
            check_unpadded(table)
            self.put(table.gather, table.rows_record(0, found.data_ptr()), row_grain(width))
        out = found if factor == 1 else self.scaled_add(found, None, factor, lasts=True)
        behind = self.next_index

        def is_other(batch: InputBatch) -> bool:
            if number is not None and batch.adapters is not None and batch.adapters.change(number):
                return True
            return batch.input_embeddings is not None

        def write_records(batch: InputBatch, records: Records) -> None:
            if table is not None and not of_ranks:
                records[first, _INDEXES] = batch.token_ids.data_ptr()
            if is_other(batch):
                records[first:behind, ROWS] = 0

        def copy_in(batch: InputBatch, records: Records) -> None:
            if is_other(batch):
                out[: len(batch.token_ids)] = self._ops.embed(look_up, batch, width, table, factor)
            elif table is None:
                found[: len(batch.token_ids)] = look_up(batch)

        self.on_batch(write_records)
        self.on_run(copy_in, lambda batch: table is not None and not is_other(batch))
        return out

    def _embed_of_owners(self, table: Any, shares: Shares, own: torch.Tensor) -> torch.Tensor:
        """Puts the lookup of each token by the rank that has its row. own: buffer [M, E]."""
        check_unpadded(table)
        ranks, width = self.ranks(shares.group), own.shape[1]
        local, sources = ranks.find_owners(None, (self.most_tokens,), shares, 0)
        self.put(table.gather, table.rows_record(local.data_ptr(), own.data_ptr()), row_grain(width))
        return self.gather(ranks.exchange(own).flatten(0, 1), sources)

    def rotation(self, compute: Callable[[Any], Any], batch: Any, queries_only: bool) -> Any:
        angles = RecordedAngles(self, compute)
        self.on_run(angles.update, angles.is_fixed)
        unknown = torch.empty(0)
        return Rotation(unknown, unknown, None, angles, queries_only)

    def packed_linear(self, x: torch.Tensor, weight: Any, wide: bool = False) -> torch.Tensor:
        out = self.empty((len(x), weight.out_features), torch.float32 if wide else x.dtype)
        self._product(weight, x.contiguous(), out)
        return out

    def _product(self, weight: Any, x: torch.Tensor, out: torch.Tensor) -> None:
        """Puts out = x @ weight.T + bias. x: [M, in], out: [M, out] of x's dtype or float32."""
        check_unpadded(weight)
        tokens = len(x)

        def allocate(width: int, dtype: torch.dtype) -> torch.Tensor:
            return self.empty((tokens, width), dtype)

        inputs, terms = weight.prepare(x, allocate, self.put)
        self.put_product(weight.product, weight.record(inputs, out, terms), weight)

    def adapt(
        self, y: torch.Tensor, x: torch.Tensor, layer: int, adapters: StepAdapters | None
    ) -> torch.Tensor:
        """Puts what applies a step's adapters to the result of the last product. It changes that in place: a
        late thread must not write the product again, which is therefore not repeatable in such a step."""
        self._adapted.append(self._put_adapters(y, x, layer, self.products[-1], grain=0))
        return y

    def adapt_pairs(
        self, y: torch.Tensor, x: torch.Tensor, layer: int, order: RecordedOrder, product: int
    ) -> None:
        """Puts the same for the experts of pairs. product: index of the record of all of them, with grain
        1."""
        if order.adapted is None:
            sort, order.adapted = self._pair_record(order.experts, order.places, order.num_experts)
            self._sorted_pairs.append(self.put(self.experts.pair, sort, 1, factor=0))
        pairs, addresses, _ = order.adapted
        rows = {"tokens": pairs.data_ptr(), "adapters": addresses.data_ptr()}
        record = self._put_adapters(y, x, layer, product, grain=1, **rows)
        self._adapted_pairs.append((record, order.places.shape[1]))

    def _put_adapters(
        self, y: torch.Tensor, x: torch.Tensor, layer: int, product: int, grain: int, **rows: int
    ) -> int:
        """rows: fields of the record that are no step's. Returns its index."""
        if not self._adapted_products:
            self.on_batch(self._update_adapters)
        record = self._adapt_record(y, x.contiguous(), layer)
        for name, address in rows.items():
            setattr(record, name, address)
        self._adapted_products[product] = grain
        return self.put(self.adapting(y), record, AT_ONCE, factor=0)

    def _update_adapters(self, batch: InputBatch, records: Records) -> None:
        adapters, products = batch.adapters, list(self._adapted_products)
        records[products, _SHARING] = list(self._adapted_products.values())
        if adapters is None:
            records[products, _SHARING] += _REPEATABLE
            return
        count = len(adapters.tokens)
        addresses = adapters.tokens.data_ptr(), adapters.addresses.data_ptr()
        _adapt_rows(records, self._adapted, adapters)
        for index, top_k in self._adapted_pairs:
            records[index, ROWS] = top_k * count
        for index in self._sorted_pairs:
            records[index, ROWS], records[index, _PAIR_COUNT] = 1, count
            records[index, _PAIR_TOKENS], records[index, _PAIR_ADAPTERS] = addresses

    def head_linear(
        self,
        x: torch.Tensor,
        matrices: Sequence[Any],
        stacked: torch.Tensor | None,
        adapters: StepAdapters | None = None,
    ) -> torch.Tensor:
        tokens, heads, width = x.shape
        by_head = self.empty((heads, tokens, width), x.dtype)
        self._copy_heads(x, by_head.transpose(0, 1))
        out = self.empty((heads, tokens, matrices[0].packed.out_features), x.dtype)
        for matrix, x_of_head, out_of_head in zip(matrices, by_head, out, strict=True):
            self._product(matrix.packed, x_of_head, out_of_head)
            if matrix.number is not None:
                self.adapt(out_of_head, x_of_head, matrix.number, adapters)
        return out.transpose(0, 1)

    def side_by_side(self, x: torch.Tensor) -> torch.Tensor:
        out = self.empty(x.shape, x.dtype)
        self._copy_heads(x, out)
        return out.flatten(1)

    def latent_heads(
        self,
        absorbed: torch.Tensor,
        rotary_queries: torch.Tensor,
        latents: torch.Tensor,
        norm: HeadNorm,
        rotation: Callable[[torch.Tensor], torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (tokens, heads, rank), angles = absorbed.shape, angles_of(rotation)
        kept = self.empty(latents.shape, latents.dtype)
        self.norm_heads(norm, latents[:, None, :rank], kept[:, None, :rank])
        angles.put(latents[:, None, rank:], kept[:, None, rank:])
        rotated = self.empty((tokens, rotary_queries.stride(0)), latents.dtype)
        rotated = rotated[:, : rotary_queries.shape[1]].view(tokens, heads, -1)
        angles.put(rotary_queries.view(tokens, heads, -1), rotated)
        query = self.empty((tokens, heads, latents.shape[1]), latents.dtype)
        self._copy_heads(absorbed, query[..., :rank])
        self._copy_heads(rotated, query[..., rank:])
        return query, kept

    def _copy_heads(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """x, out: views [M, H, D] of buffers, of any strides between rows and heads."""
        from kernels.cpu.attention.latent.operations import copy_heads  # compiles, the first time

        _, heads, width = x.shape
        if width % 2:
            raise CannotRecord("heads are copied in words of 32 bits")
        record = CopyHeadsRecord(
            x=x.data_ptr(),
            out=out.data_ptr(),
            heads=heads,
            head_bytes=x.itemsize * width,
            x_stride=x.itemsize * x.stride(0),
            x_pitch=x.itemsize * x.stride(1),
            out_stride=x.itemsize * out.stride(0),
            out_pitch=x.itemsize * out.stride(1),
        )
        self.put(copy_heads, record, row_grain(heads * width))

    def sort_by_expert(
        self,
        chosen: torch.Tensor,
        dtype: torch.dtype,
        *products: Any,
        adapters: StepAdapters | None = None,
    ) -> RecordedOrder:
        return RecordedOrder(self, chosen, products[0].num_experts)

    def expert_linear(
        self,
        x: torch.Tensor,
        weights: Any,
        order: RecordedOrder,
        by_token: bool = False,
        adapters: StepAdapters | None = None,
    ) -> torch.Tensor:
        x = order.gather(x) if by_token else x
        out, product = order.product(weights, x)
        if weights.number is not None:
            self.adapt_pairs(out, x, weights.number, order, product)
        return out

    def choose(
        self,
        logits: Callable[[torch.Tensor], torch.Tensor],
        hidden: torch.Tensor,
        most_logits: int,
        group: RankGroup,
    ) -> None:
        """Puts the logits, float32, of `most_logits` tokens at most, and the choice among them. Batches that
        want less compute less (StepProgram.computed). hidden: [M, E]. Rank 0 chooses, and tells others."""
        from kernels.cpu.sampling.choose import Choice  # compiles, the first time

        gather, in_order, before = self.next_index, torch.arange(most_logits), len(self._adapted)
        all_logits = logits(self.gather(hidden, in_order))
        adapted, self._adapted = self._adapted[before:], self._adapted[:before]
        choice = Choice(most_logits, all_logits.shape[1], self.team)
        product = slice(gather, self.next_index)
        for operation, record in choice.operations():
            self.put(operation, record, 1, repeatable=True)
        chosen = slice(product.stop, self.next_index)
        if group.size > 1:
            self.ranks(group).tell(choice.tokens)

        def update(batch: InputBatch, records: Records) -> None:
            computed = batch.num_logits
            self.computed.logits = all_logits[:computed] if computed else None
            self.computed.tokens = None if group.size == 1 else choice.tokens[:computed]
            records[product, ROWS] = computed
            if group.size > 1:
                self.begin_choice(records, computed, gather, choice.tokens)
            _adapt_rows(records, adapted, batch.logit_adapters if computed else None)
            indexes = in_order if batch.logit_tokens is None else batch.logit_tokens
            records[gather, _GATHERED] = indexes.data_ptr()
            if group.rank == 0 and batch.wanted == Wanted.TOKENS and batch.sampled_by is not None:
                rows, columns = batch.sampled_by
                choice.set_rows(
                    records[chosen], all_logits[:computed], columns, rows.data_ptr(), indexes.data_ptr()
                )
                self.computed.tokens = choice.tokens[:computed]
            else:
                records[chosen, ROWS] = 0

        self.computed.most_logits = most_logits
        self.on_batch(update)

    def await_choice(self, most_logits: int, group: RankGroup) -> None:
        """Puts what gets the tokens that rank 0 chooses, of `most_logits` at most, on a rank that computes no
        logits."""
        begin, tokens = self.next_index, self.constant(torch.zeros(most_logits, dtype=torch.int64))
        self.ranks(group).tell(tokens)

        def update(batch: InputBatch, records: Records) -> None:
            self.computed.tokens = tokens[: batch.num_logits]
            self.begin_choice(records, batch.num_logits, begin, tokens)

        self.computed.most_logits = most_logits
        self.on_batch(update)

    def attention(self, spec: KVCacheSpec) -> AttentionRecords:
        """Returns the attention records of the layers of this kind."""
        if spec not in self._attention:
            self._attention[spec] = AttentionRecords(self, spec)
            self.on_batch(self._attention[spec].update)
        return self._attention[spec]

    def prefetch(self, specs: Iterable[KVCacheSpec], cache: LayerCache, batch: InputBatch) -> None:
        """Has products prefetch the keys and values of the attention behind them. Call before anything is
        put. cache: of any layer; latents are few bytes, and nothing is done for them. batch: of any step."""
        if len(cache) < 2:
            return
        for spec in dict.fromkeys(specs):
            records, prefetch = self.attention(spec), KVPrefetch()
            record = prefetch.record(records.plan_of(batch).plan, (cache[0], cache[1]))
            records.add_prefetch(prefetch, record)

    def build(self, hidden: torch.Tensor) -> StepProgram:
        step = super().build(hidden)
        self._link_products(step.program.records)
        self._add_streams(step.program.records)
        return step

    def _link_products(self, records: Records) -> None:
        """Tells each product which weight follows its own."""
        self._halves_array = np.array(self.halves, np.int64)
        for number, product in enumerate(self.products[:-1]):
            records[product, _FOLLOWING] = self._halves_array[number + 1].ctypes.data

    def _add_streams(self, records: Records) -> None:
        """Has the products between one attention and the next prefetch for the latter."""
        layers = [(at, keys, kind) for kind in self._attention.values() for at, keys in kind.layers()]
        before = 0
        for attention, keys, kind in sorted(layers, key=lambda layer: layer[0]):
            products = [product for product in self.products if before < product < attention]
            before = attention
            if kind.prefetch is not None and products:
                sizes = records[products][:, [_COLUMNS, _WORDS]].tolist()
                records[products, STREAM] = kind.prefetch.streams(keys, sizes)


def _adapt_rows(records: Records, indexes: list[int], adapters: StepAdapters | None) -> None:
    """Gives records that apply adapters the rows of a step."""
    records[indexes, ROWS] = 0 if adapters is None else len(adapters.tokens)
    if adapters is not None:
        records[indexes, _TOKENS] = adapters.tokens.data_ptr()
        records[indexes, _ADAPTERS] = adapters.addresses.data_ptr()


_CHANGES = frozenset(("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"))
"""Functions of tensors that change one, beside those whose names end with _."""
_READS = frozenset(("tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__"))
"""Functions by which the host reads values, which change from step to step."""


class _OnlyViews(TorchFunctionMode):
    """Raises CannotRecord where torch computes with buffers: once, on what is not there yet."""

    def __init__(self, buffers: ActivationBuffers) -> None:
        super().__init__()
        self._buffers = buffers

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result, name = func(*args, **(kwargs or {})), func.__name__
        acts = name in _CHANGES or name in _READS or (name.endswith("_") and not name.endswith("__"))
        given = (*args, *(kwargs or {}).values())
        if any(self._buffered(given)) and (acts or not all(self._buffered((result,)))):
            raise CannotRecord(f"torch computes {name}()")
        return result

    def _buffered(self, values: Iterable[object]) -> Iterator[bool]:
        """Says of each tensor among values, and among lists of them, whether it is part of a buffer."""
        for value in values:
            if isinstance(value, torch.Tensor):
                yield value in self._buffers
            elif isinstance(value, list | tuple):
                yield from self._buffered(value)
