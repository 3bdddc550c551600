"""The compiled operations of layers on activations of one dtype, for modules that do not compile them
themselves. Call what compiles them only if kernels.cpu.requirements.why_not() is None."""

from typing import NamedTuple

import torch

from kernels.cpu.adapters.records import AdaptRecord, PairAdaptersRecord
from kernels.cpu.compiler.records import Operation
from kernels.cpu.elementwise.records import (
    ActivationRecord,
    AdjustLogitsRecord,
    ClampedSwigluRecord,
    GatedActivationRecord,
    GatherRecord,
    LayerNormRecord,
    NormRecord,
    RotaryRecord,
    ScaledAddRecord,
)
from kernels.cpu.experts.records import (
    CombineRecord,
    DispatchRecord,
    GroupedRecord,
    RouteRecord,
    WeighRecord,
)
from kernels.cpu.states.records import (
    ConvolutionRecord,
    DeltaRuleRecord,
    GatedNormRecord,
    GroupedNormRecord,
    OutputGateRecord,
    SelectiveScanRecord,
)


class RowKernels(NamedTuple):
    """kernels.cpu.elementwise: what all models have."""

    norm: Operation[NormRecord]
    layer: Operation[LayerNormRecord]
    activate: Operation[ActivationRecord]
    silu: Operation[GatedActivationRecord]
    gelu: Operation[GatedActivationRecord]
    swiglu: Operation[ClampedSwigluRecord]
    rotary: Operation[RotaryRecord]
    add: Operation[ScaledAddRecord]
    logits: Operation[AdjustLogitsRecord]
    gather: Operation[GatherRecord]


class ExpertKernels(NamedTuple):
    """kernels.cpu.experts: mixtures of experts."""

    choose: Operation[RouteRecord]
    dispatch: Operation[DispatchRecord]
    product: Operation[GroupedRecord]
    sum: Operation[CombineRecord]
    weigh: Operation[WeighRecord]
    pair: Operation[PairAdaptersRecord]


class AdapterKernels(NamedTuple):
    """kernels.cpu.adapters: what all models have."""

    add: Operation[AdaptRecord]
    add_wide: Operation[AdaptRecord]  # to outputs in float32
    embed: Operation[AdaptRecord]


class StateKernels(NamedTuple):
    """kernels.cpu.states: gated delta nets and Mamba-2 layers."""

    convolve: Operation[ConvolutionRecord]
    learn: Operation[DeltaRuleRecord]
    scan: Operation[SelectiveScanRecord]
    gated_norm: Operation[GatedNormRecord]
    grouped_norm: Operation[GroupedNormRecord]
    gate: Operation[OutputGateRecord]


def row_kernels(dtype: torch.dtype) -> RowKernels:
    """Returns the operations, compiled if needed. dtype: bfloat16 or float32."""
    from kernels.cpu.elementwise import activations, gather, norms, rotary  # compiles, the first time

    return RowKernels(
        norms.rms_norm.of(dtype),
        norms.layer_norm.of(dtype),
        activations.activation.of(dtype),
        activations.gated_silu.of(dtype),
        activations.gated_gelu.of(dtype),
        activations.clamped_swiglu.of(dtype),
        rotary.rotary.of(dtype),
        norms.scaled_add.of(dtype),
        norms.adjust_logits,
        gather.gather_rows,
    )


def adapter_kernels(dtype: torch.dtype) -> AdapterKernels:
    """Returns the operations, compiled if needed. dtype: bfloat16 or float32."""
    from kernels.cpu.adapters import adapt  # compiles, the first time

    own = adapt.adapt.of(dtype)
    wide = own if dtype == torch.float32 else adapt.adapt_bfloat16_wide
    return AdapterKernels(own, wide, adapt.adapt_embeddings.of(dtype))


def expert_kernels(dtype: torch.dtype) -> ExpertKernels:
    """Returns the operations, compiled if needed. dtype: bfloat16 or float32."""
    from kernels.cpu.adapters.pairs import pair_adapters  # compiles, the first time
    from kernels.cpu.experts import dispatch, route

    return ExpertKernels(
        route.route,
        dispatch.dispatch,
        dispatch.grouped_product,
        dispatch.combine.of(dtype),
        dispatch.weigh.of(dtype),
        pair_adapters,
    )


def state_kernels(dtype: torch.dtype) -> StateKernels:
    """Returns the operations, compiled if needed. dtype: bfloat16 or float32."""
    from kernels.cpu.states import convolution, delta_rule, norms, selective_scan  # compiles, the first time

    return StateKernels(
        convolution.convolution.of(dtype),
        delta_rule.delta_rule.of(dtype),
        selective_scan.selective_scan.of(dtype),
        norms.gated_norm.of(dtype),
        norms.grouped_norm.of(dtype),
        norms.output_gate.of(dtype),
    )
