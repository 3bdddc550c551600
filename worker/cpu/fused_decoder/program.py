"""A Llama-like model's forward pass as one program of the CPU kernels: one call per step.

The layered forward() makes some ten calls per layer, which cost more than a small model's arithmetic.
This is the same sequence of the same operations, written down once as records (kernels.cpu.runtime.program);
a step fills in how many tokens it has and where its positions and plans are. It gives the same bits as
the layered forward, which stays as its twin.

    embedding  [T, E] -> residual
    per layer  norm -> qkv -> (norms of heads) -> rotary -> store -> attention -> output
               add and norm -> gate and up -> gated SiLU -> down
    add and norm -> hidden
    head         -> logits, where all tokens of a step of few are sampled from, and then the
                 largest, where that is all that the rows want (worker.cpu.fused_decoder.head)

Activations live in buffers that are made for the most tokens that came so far, and are used again in
every step, and in every layer or every fourth one: in a step of few tokens a thread that lost its core
may be some layers behind (kernels.cpu.runtime.straggler_recovery), and what it writes then is read by
nobody. So what is computed twice has a buffer of its own in the layer, which nothing changes in place.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kernels.cpu.attention.block_attention import SETS, BlockPlan, attention_record
from kernels.cpu.attention.kv_prefetch import LEAST_ROWS, KVPrefetch
from kernels.cpu.attention.records import AttentionRecord, PrefetchRecord, StoreKVRecord
from kernels.cpu.compiler.records import Operation, OwnRecord
from kernels.cpu.elementwise.records import GatedSiluRecord, NormRecord, RotaryRecord
from kernels.cpu.elementwise.row_kernels import RowKernels, row_grain
from kernels.cpu.matmul.int8 import QuantizedWeight
from kernels.cpu.matmul.records import PackedRowsRecord
from kernels.cpu.runtime.records import ProductRecord
from worker.attention.block_plan import BlockAttentionPlan
from worker.attention.kv_cache_spec import KVCacheSpec
from worker.attention.plan import LayerCache, Rotation
from worker.cpu.fused_decoder.buffers import LayerBuffers, make_buffers, make_layer_buffers
from worker.cpu.fused_decoder.head import CHOICE, ROWS, DecoderHead
from worker.layers.embedding import VocabEmbedding
from worker.layers.norm import RMSNorm
from worker.layers.packed_linear import Matrix
from worker.model_input import InputBatch

if TYPE_CHECKING:
    from worker.models.llama import LlamaAttention, LlamaBlock, LlamaModel

INDEXES = PackedRowsRecord.word("indexes")
COS, ANGLES_END = RotaryRecord.word("cos"), RotaryRecord.word("index") + 1
SLOTS, PLAN = StoreKVRecord.word("slot_rows"), AttentionRecord.word("plan")
COLUMNS, WORDS = ProductRecord.word("columns"), ProductRecord.word("words")
FOLLOWING, STREAM = ProductRecord.word("following"), ProductRecord.word("stream")
LISTED_PLAN, LISTED_ITEMS = PrefetchRecord.word("plan"), PrefetchRecord.word("items")
"""Words of records that are written after they were put into the program."""
FEW = 64
"""Tokens of a step whose layers are so short that they do not wait for a thread without a core, and whose
attention waits for memory."""


def fits(model: "LlamaModel") -> bool:
    """Whether every operation of the model has a kernel, and its weights are packed."""
    return model.embedding.width % 16 == 0 and all(
        model.rotary.kernels is not None
        and block.attention.qkv.packed is not None
        and block.mlp.kernels is not None
        and block.attention_norm.kernels is not None
        and block.attention.output.group.size == 1
        for block in model.layers
    )


class DecoderProgram:
    """For one model, one cache, and steps of at most `most_tokens`."""

    def __init__(
        self,
        model: "LlamaModel",
        kernels: RowKernels,
        caches: Sequence[LayerCache],
        plan: BlockPlan,
        most: int,
    ) -> None:
        """plan: of any step; its kernels are used. most: tokens of a step."""
        from kernels.cpu.runtime.thread_pool import Program

        self.most_tokens = most
        self._rows, self._blocks = kernels, plan.kernels
        self._buffers = make_buffers(model, most)
        sets = SETS if most <= FEW else 1
        self._sets = [make_layer_buffers(model, most, number) for number in range(sets)]
        self._embedding = model.embedding
        looked_up = model.embedding.packed is not None
        sizes = [_records(block) for block in model.layers]
        specs = dict.fromkeys(model.kv_cache_specs()) if most <= FEW else {}
        has_head = most <= FEW and model.head.packed is not None
        head_records = _product_records(model.head) + CHOICE if has_head else 0
        size = len(specs) + looked_up + sum(sizes) + 1 + head_records
        self._program = Program(size, slack=sets * min(sizes) if most <= FEW else 0)
        self._next = 0
        self._products: list[int] = []
        self._halves_of_products: list[tuple[int, int]] = []
        self._rotaries: list[int] = []
        self._attentions: dict[KVCacheSpec, list[int]] = {}
        self._prefetches = {spec: KVPrefetch() for spec in specs}
        for prefetch in self._prefetches.values():
            record = prefetch.record(plan, (caches[0][0], caches[0][1]))
            self._put(prefetch.operation, record, 1)
        self._add_embedding()
        to_add = None
        for number, (block, cache) in enumerate(zip(model.layers, caches, strict=True)):
            to_add = self._add_block(block, cache, self._sets[number % sets], to_add)
        self._add_norm(model.norm, to_add)
        self._head = self._add_head(model.head) if has_head else None
        self._batch: InputBatch | None = None  # whose inputs the records name
        self._turns = 0, 0, 0  # where the angles of rotations are
        self._hidden = self._buffers.normed[:0]  # of the batch
        self._halves = np.array(self._halves_of_products, np.int64)
        for number, product in enumerate(self._products[:-1]):
            self._program.records[product, FOLLOWING] = self._halves[number + 1].ctypes.data
        self._add_streams(caches)

    def run(self, rotation: Rotation, batch: InputBatch) -> torch.Tensor:
        """-> [T, E], which the next step overwrites."""
        if batch is not self._batch:  # that of most steps that decode is, with other numbers in it
            self._read_from(batch)
        angles = rotation.cos.data_ptr(), rotation.sin.data_ptr()
        index = 0 if rotation.index is None else rotation.index.data_ptr()
        if (*angles, index) != self._turns:
            self._turns = *angles, index
            self._program.records[self._rotaries, COS:ANGLES_END] = self._turns
        if self._embedding.packed is None:
            self._buffers.residual[: self._hidden.shape[0]] = self._embedding(batch.token_ids)
        self._rows.team.run(self._program)
        return self._hidden

    def logits_of(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """[T, V] float32, which the next step overwrites: of what the last run() returned, if all of it is
        sampled from. None: they are still to be computed."""
        return self._head.logits if self._head is not None and hidden is self._hidden else None

    def greedy_tokens(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """[T] int64, which the next step overwrites: the same for the tokens of the largest logits, if
        that is all that the rows want."""
        return self._head.tokens if self._head is not None and hidden is self._hidden else None

    def _read_from(self, batch: InputBatch) -> None:
        """Writes down how many tokens there are, and where the inputs and plans of this batch lie."""
        tokens, records = len(batch.token_ids), self._program.records
        records[:, ROWS] = tokens
        for index, spec in enumerate(self._prefetches):
            plan = _block_plan(batch, spec).plan
            records[index, ROWS] = tokens >= LEAST_ROWS
            records[index, LISTED_PLAN], records[index, LISTED_ITEMS] = plan.address, plan.made[0]
        if self._embedding.packed is not None:
            records[len(self._prefetches), INDEXES] = batch.token_ids.data_ptr()
        for spec, indexes in self._attentions.items():
            planned = _block_plan(batch, spec)
            plan, units = planned.plan, int(planned.plan.made[0]) * self._kv_heads
            records[[index - 1 for index in indexes], SLOTS] = planned.slot_rows.data_ptr()
            records[indexes, ROWS] = units
            records[indexes, PLAN] = plan.address
            combining = [index + 1 for index in indexes]
            records[combining, ROWS] = units if len(plan.partials) else 0
            records[combining, PLAN] = plan.address
        self._batch, self._hidden = batch, self._buffers.normed[:tokens]
        if self._head is not None:
            self._head.read_from(batch)

    def _add_embedding(self) -> None:
        """Where it is packed, since it is the head as well."""
        packed = self._embedding.packed
        if packed is not None:
            record = packed.rows_record(0, self._buffers.residual.data_ptr())
            gather: Operation[Any] = packed.gather
            self._put(gather, record, row_grain(self._embedding.width))

    def _add_block(
        self, block: "LlamaBlock", cache: LayerCache, layer: LayerBuffers, to_add: torch.Tensor | None
    ) -> torch.Tensor:
        """to_add: [M, E], to the residual stream, from the layer before. Returns the same of this one."""
        normed, mlp = self._buffers.normed, block.mlp
        self._add_norm(block.attention_norm, to_add)
        self._add_product(block.attention.qkv, normed, layer.qkv)
        self._add_attention(block.attention, cache, layer)
        self._add_product(block.attention.output, layer.mixed, layer.attended)
        self._add_norm(block.mlp_norm, layer.attended)
        self._add_product(mlp.gate_up, normed, layer.gate_up)
        width = layer.gated.shape[1]
        gate_up, gated = layer.gate_up.data_ptr(), layer.gated.data_ptr()
        record = GatedSiluRecord(gate_up=gate_up, out=gated, width=width)
        self._put(self._rows.silu, record, row_grain(width), repeatable=True)
        self._add_product(mlp.down, layer.gated, layer.down)
        return layer.down

    def _add_norm(self, norm: RMSNorm, to_add: torch.Tensor | None) -> None:
        """Of the residual stream, after something has been added to it."""
        buffers, width = self._buffers, norm.weight.shape[0]
        residual = buffers.residual.data_ptr()
        record = NormRecord(
            x=residual if to_add is None else to_add.data_ptr(),
            residual=0 if to_add is None else residual,
            weight=norm.weight.data_ptr(),
            normed=buffers.normed.data_ptr(),
            total=residual,
            width=width,
            eps=norm.eps,
            heads=1,
            stride=2 * width,
        )
        self._put(self._rows.norm, record, row_grain(width))

    def _add_head(self, head: VocabEmbedding) -> DecoderHead:
        """To the hidden states."""
        first = self._next
        added = DecoderHead(head.vocab_size, self.most_tokens)
        self._add_product(head, self._buffers.normed, added.all_logits)
        added.put_choice(self._program, slice(first, self._next))
        self._next += CHOICE
        return added

    def _add_product(self, layer: Matrix, x: torch.Tensor, out: torch.Tensor) -> None:
        packed, buffers = layer.packed, self._buffers
        assert packed is not None
        if isinstance(packed, QuantizedWeight):
            quantize = packed.quantize_record(x, buffers.integers, buffers.scales)
            self._put(packed.quantize, quantize, row_grain(packed.in_features))
            record: ProductRecord = packed.record(buffers.integers, buffers.scales, out)
        else:
            record = packed.record(x, out)
        self._products.append(self._next)
        self._halves_of_products.append(packed.halves)
        product: Operation[Any] = packed.product
        self._put(product, record, 0, repeatable=True)

    def _add_attention(self, attention: "LlamaAttention", cache: LayerCache, layer: LayerBuffers) -> None:
        """Head norms, rotation, cache, attention: from qkv to mixed."""
        heads, kv_heads, head_dim = attention.num_heads, attention.num_kv_heads, attention.head_dim
        self._kv_heads = kv_heads
        stride = 2 * head_dim * (heads + 2 * kv_heads)
        qkv, query, to_key = layer.qkv.data_ptr(), layer.turned.data_ptr(), 2 * head_dim * heads
        source, to_value = qkv, 2 * head_dim * (heads + kv_heads)
        for norm, at, count in _head_norms(attention, to_key):
            head_norm = NormRecord(
                x=qkv + at,
                weight=norm.weight.data_ptr(),
                normed=query + at,
                total=qkv + at,
                width=head_dim,
                eps=norm.eps,
                heads=count,
                stride=stride,
            )
            self._put(self._rows.norm, head_norm, row_grain(count * head_dim))
            source = query
        turned = heads + kv_heads
        self._rotaries.append(self._next)
        rotate = RotaryRecord(x=source, stride=stride, heads=turned, head_dim=head_dim, out=query)
        self._put(self._rows.rotary, rotate, row_grain(turned * head_dim), repeatable=source == qkv)
        store = StoreKVRecord(
            key=query + to_key,
            value=qkv + to_value,
            key_cache=cache[0].data_ptr(),
            value_cache=cache[1].data_ptr(),
            slot_rows=0,
            stride=stride,
            heads=kv_heads,
            head_dim=head_dim,
        )
        self._put(self._blocks.store, store, row_grain(2 * kv_heads * head_dim), repeatable=True)
        self._attentions.setdefault(attention.attention.spec, []).append(self._next)
        strides, mixed = (stride, 2 * heads * head_dim), layer.mixed.data_ptr()
        both, scale = (cache[0], cache[1]), attention.attention.scale
        record = attention_record(query, mixed, both, 0, strides, heads, scale, layer.number)
        self._put(self._blocks.attend, record, 1, repeatable=True)
        self._put(self._blocks.combine, record, 1, repeatable=True)

    def _add_streams(self, caches: Sequence[LayerCache]) -> None:
        """What products ask for from memory: those between one attention and the next."""
        records, before = self._program.records, 0
        layers = sorted(
            ((at, spec) for spec, indexes in self._attentions.items() for at in indexes),
            key=lambda layer: layer[0],
        )
        for (attention, spec), cache in zip(layers, caches, strict=True):
            products = [product for product in self._products if before < product < attention]
            before = attention
            if spec in self._prefetches:
                sizes = records[products][:, [COLUMNS, WORDS]].tolist()
                records[products, STREAM] = self._prefetches[spec].streams(cache[0], sizes)

    def _put(
        self, operation: Operation[OwnRecord], record: OwnRecord, grain: int, repeatable: bool = False
    ) -> None:
        self._program.put(self._next, operation, 0, record, grain, repeatable)
        self._next += 1


def _records(block: "LlamaBlock") -> int:
    """Of one layer."""
    return 4 * _product_records(block.mlp.down) + 7 + len(block.attention.norms or ())


def _product_records(layer: Matrix) -> int:
    """Inputs become integers before a product of integers."""
    return 2 if isinstance(layer.packed, QuantizedWeight) else 1


def _head_norms(attention: "LlamaAttention", to_key: int) -> list[tuple[RMSNorm, int, int]]:
    """Norms, how far behind the queries the normed heads begin, in bytes, and how many heads."""
    if attention.norms is None:
        return []
    query_norm, key_norm = attention.norms
    return [(query_norm, 0, attention.num_heads), (key_norm, to_key, attention.num_kv_heads)]


def _block_plan(batch: InputBatch, spec: KVCacheSpec) -> BlockAttentionPlan:
    plan = batch.attention[spec]
    assert isinstance(plan, BlockAttentionPlan)
    return plan
