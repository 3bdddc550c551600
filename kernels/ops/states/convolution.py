"""A causal convolution over the last tokens of each row, by channel, with what it keeps of them.

    out[t, c] = silu(bias[c] + sum over k of weight[c, k] * x[t - taps + 1 + k, c])

where x of tokens before the first one is 0. A row keeps x of its last taps - 1 tokens, and beside them x of
drafted ones. Sums go from the oldest token on, beginning with the bias.
"""

import torch
from torch.nn.functional import silu

from kernels.ops.states.spans import AnySpans, Spans


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    state: torch.Tensor,
    spans: AnySpans,
    drafted: torch.Tensor | None = None,
) -> torch.Tensor:
    """x: [T, C]; weight: [taps, C] and bias: [C] float32; state: [rows, taps - 1, C] float32, which changes,
    and drafted: [rows, K, C] float32, of at most K drafted tokens; None: there are none. Returns [T, C]
    float32. spans: on the host."""
    assert isinstance(spans, Spans)
    taps, out = len(weight), torch.empty(x.shape, dtype=torch.float32, device=x.device)
    for span in spans:
        row, length, first = span.row, span.length, span.first
        kept = state[row] if span.start else torch.zeros_like(state[row])
        if drafted is not None:
            kept = torch.cat((kept, drafted[row, : span.replayed]))[span.replayed :]
        inputs = torch.cat((kept, x[first : first + length].float()))
        total = bias
        for tap in range(taps):
            total = total + inputs[tap : tap + length] * weight[tap]
        out[first : first + length] = silu(total)
        state[row] = inputs[span.certain : span.certain + taps - 1]
        if drafted is not None:
            drafted[row, : length - span.certain] = x[first + span.certain : first + length]
        for behind in range(1, length + 1):
            for target in span.targets(behind):
                state[target] = inputs[behind : behind + taps - 1]
    return out
