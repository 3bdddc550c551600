"""The compiled operations of gated delta nets, for modules that do not compile them themselves."""

from typing import NamedTuple

import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.delta.records import DeltaRuleRecord, GatedNormRecord, OutputGateRecord


class DeltaKernels(NamedTuple):
    """Of activations of one dtype, but for the convolution, which Mamba-2 layers have too."""

    learn: Operation[DeltaRuleRecord]  # kernels.cpu.delta.delta_rule.delta_rule
    norm: Operation[GatedNormRecord]  # kernels.cpu.delta.gated_norm.gated_norm
    gate: Operation[OutputGateRecord]  # kernels.cpu.delta.output_gate.output_gate


def delta_kernels(dtype: torch.dtype) -> DeltaKernels:
    """Returns the operations, compiled if needed. Call only if kernels.cpu.requirements.why_not() is None.
    dtype: bfloat16 or float32."""
    from kernels.cpu.delta.delta_rule import delta_rule, delta_rule_float32  # compiles, the first time
    from kernels.cpu.delta.gated_norm import gated_norm, gated_norm_float32
    from kernels.cpu.delta.output_gate import output_gate, output_gate_float32

    if dtype == torch.float32:
        return DeltaKernels(delta_rule_float32, gated_norm_float32, output_gate_float32)
    return DeltaKernels(delta_rule, gated_norm, output_gate)
