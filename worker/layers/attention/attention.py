"""Attention of one layer: stores this step's keys and values, then attends to all that its queries may
see."""

import torch

from kernels.cpu.attention.block_attention import attention_record, scoring_record
from kernels.cpu.attention.records import StoreKVRecord
from kernels.cpu.elementwise.records import NormRecord, RotaryRecord
from kernels.cpu.elementwise.row_kernels import row_grain
from worker.attention.kv_cache_spec import AttentionSpec
from worker.attention.plan import HeadNorm, HeadNorms, LayerCache, Rotation, Scoring
from worker.layers.base import Layer
from worker.lowering.builder import ProgramBuilder
from worker.lowering.rotation import LoweredRotation
from worker.model_input import InputBatch


class Attention(Layer):
    """Sizes, scale and window of one layer; it has no parameters."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int | None = None,
        scale: float | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
        chunked: bool = False,
    ) -> None:
        """num_heads, num_kv_heads: those of this rank. window: tokens that a query sees, itself included;
        None: all. scale: default D ** -0.5. soft_cap, sinks: see Scoring; the sinks stay where they are.
        chunked: see KVCacheSpec."""
        super().__init__()
        self.num_heads, self.spec = num_heads, AttentionSpec(num_kv_heads, head_dim, window, chunked)
        self.scoring = Scoring(head_dim**-0.5 if scale is None else scale, soft_cap, sinks)
        self._record = scoring_record(soft_cap, sinks)  # of lowered programs, which point at it

    def forward(
        self,
        qkv: torch.Tensor,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        """[T, (H + 2 K) * D], the heads of queries, keys and values side by side -> [T, H * D].

        norms: of each query's and each key's head, applied before the rotation.
        """
        heads = qkv.view(qkv.shape[0], -1, self.spec.head_dim)
        plan = batch.attention[self.spec]
        return plan.store_and_attend(heads, cache, self.scoring, rotation, norms).flatten(1)

    def lower(
        self,
        builder: ProgramBuilder,
        qkv: torch.Tensor,
        cache: LayerCache,
        rotation: LoweredRotation | None = None,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        head_dim, kv_heads, blocks = self.spec.head_dim, self.spec.num_kv_heads, builder.blocks
        stride, head_bytes = qkv.itemsize * qkv.shape[1], qkv.itemsize * head_dim
        query = key = qkv
        value = qkv.data_ptr() + head_bytes * (self.num_heads + kv_heads)
        if rotation is not None or norms is not None:
            query = self._lower_rotation(builder, qkv, rotation, norms)
        if norms is not None or not (rotation is None or rotation.queries_only):
            key = query
        key_cache, value_cache = cache
        store = StoreKVRecord(
            key=key.data_ptr() + head_bytes * self.num_heads,
            value=value,
            key_cache=key_cache.data_ptr(),
            value_cache=value_cache.data_ptr(),
            slot_rows=0,
            stride=stride,
            heads=kv_heads,
            head_dim=head_dim,
        )
        stored = builder.put(blocks.store, store, row_grain(2 * kv_heads * head_dim))
        out = builder.buffers.output(self.num_heads * head_dim)
        strides, number = (stride, out.itemsize * out.shape[1]), builder.buffers.set_number
        caches, addresses = (key_cache, value_cache), (query.data_ptr(), out.data_ptr())
        scale, heads = self.scoring.scale, self.num_heads
        record = attention_record(*addresses, caches, 0, strides, heads, scale, number, self._record)
        attended = builder.put(blocks.attend, record, 1, repeatable=True)
        builder.put(blocks.combine, record, 1, repeatable=True)
        builder.attention(self.spec).add_layer(stored, attended, key_cache)
        return out

    def _lower_rotation(
        self,
        builder: ProgramBuilder,
        qkv: torch.Tensor,
        rotation: LoweredRotation | None,
        norms: HeadNorms | None,
    ) -> torch.Tensor:
        """Returns the buffer of normed and rotated queries and keys, of qkv's shape; without the keys where
        these stay as they are."""
        head_dim, rotated = self.spec.head_dim, builder.buffers.output(qkv.shape[1])
        if norms is not None:
            self._lower_head_norm(builder, norms[0], qkv, rotated, 0, self.num_heads)
            self._lower_head_norm(builder, norms[1], qkv, rotated, self.num_heads, self.spec.num_kv_heads)
        if rotation is None:
            return rotated
        heads = self.num_heads + (0 if rotation.queries_only else self.spec.num_kv_heads)
        record = RotaryRecord(
            x=(qkv if norms is None else rotated).data_ptr(),
            stride=qkv.itemsize * qkv.shape[1],
            heads=heads,
            head_dim=head_dim,
            out=rotated.data_ptr(),
        )
        rotation.add(
            builder.put(builder.rows.rotary, record, row_grain(heads * head_dim), repeatable=norms is None)
        )
        return rotated

    def _lower_head_norm(
        self,
        builder: ProgramBuilder,
        norm: HeadNorm,
        qkv: torch.Tensor,
        normed: torch.Tensor,
        first: int,
        count: int,
    ) -> None:
        """Norms `count` heads, from head number `first` on."""
        head_dim, width = self.spec.head_dim, norm.weight.shape[0]
        at = qkv.itemsize * head_dim * first
        record = NormRecord(
            x=qkv.data_ptr() + at,
            weight=norm.weight.data_ptr(),
            normed=normed.data_ptr() + at,
            total=qkv.data_ptr() + at,
            width=width,
            eps=norm.eps,
            weight_offset=norm.offset,
            factor=1.0,
            heads=count * head_dim // width,
            stride=qkv.itemsize * qkv.shape[1],
        )
        builder.put(builder.rows.norm, record, row_grain(count * head_dim))
