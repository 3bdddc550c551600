"""Launches of layers that keep a state per row, for benchmarks/gpu/compile.py."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.shapes import BF16, FP32, empty
from kernels.ops.states.delta_rule import DeltaShape
from kernels.ops.states.selective_scan import MambaShape, ScanRates
from kernels.ops.states.spans import DeviceSpans

QWEN3_NEXT = DeltaShape(key_heads=16, value_heads=32, key_dim=128, value_dim=128)
MAMBAS = {
    "Granite 4 H Small": MambaShape(heads=128, head_dim=64, groups=1, state_size=128),
    "Falcon-H1": MambaShape(heads=32, head_dim=128, groups=2, state_size=256),
}
ROWS, TOKENS, SLOTS, TAPS = 33, 256, 48, 4


def state_launches() -> Iterator[tuple[str, partial[torch.Tensor]]]:
    """Convolutions, recurrences and norms."""
    from kernels.triton.states.convolution import convolution
    from kernels.triton.states.delta_rule import delta_rule
    from kernels.triton.states.norms import gated_norm, grouped_norm
    from kernels.triton.states.selective_scan import selective_scan

    spans = DeviceSpans(empty(ROWS), empty(ROWS), empty(1), empty(ROWS + 1), empty(4, ROWS + 15)[:, :ROWS])
    delta, heads = QWEN3_NEXT, QWEN3_NEXT.value_heads
    state = empty(SLOTS, heads, delta.key_dim, delta.value_dim, dtype=FP32)
    projected = empty(TOKENS, delta.channels + delta.values + 2 * heads, dtype=BF16)
    convolved, gate, gates = projected.split_with_sizes((delta.channels, delta.values, 2 * heads), 1)
    taps = empty(TAPS, delta.channels, dtype=FP32), empty(delta.channels, dtype=FP32)
    last = empty(SLOTS, TAPS - 1, delta.channels, dtype=FP32)
    mixed = empty(TOKENS, delta.channels, dtype=FP32)
    rates = empty(heads, dtype=FP32), empty(heads, dtype=FP32)
    yield "states Qwen3-Next, convolution", partial(convolution, convolved, *taps, last, spans)
    yield "states Qwen3-Next", partial(delta_rule, mixed, gates, *rates, state, delta, spans)
    scanned, weight = empty(TOKENS, heads, delta.value_dim, dtype=FP32), empty(delta.value_dim, dtype=BF16)
    yield "states Qwen3-Next, norm", partial(gated_norm, scanned, gate, weight, 1e-6)
    for name, mamba in MAMBAS.items():
        state = empty(SLOTS, mamba.heads, mamba.state_size, mamba.head_dim, dtype=FP32)
        mixed = empty(TOKENS, mamba.channels, dtype=FP32)
        scan_rates = ScanRates(empty(3, mamba.heads, dtype=FP32))
        steps = empty(TOKENS, mamba.heads, dtype=BF16)
        yield f"states {name}", partial(selective_scan, mixed, steps, scan_rates, state, mamba, spans)
        scanned, gate = empty(TOKENS, mamba.values, dtype=FP32), empty(TOKENS, mamba.values, dtype=BF16)
        weight = empty(mamba.values, dtype=BF16)
        yield f"states {name}, norm", partial(grouped_norm, scanned, gate, weight, mamba.groups, 1e-6)
