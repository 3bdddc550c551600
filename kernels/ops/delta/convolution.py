"""A causal convolution over the last tokens of each row, by channel, with what it keeps of them.

    out[t, c] = silu(sum over k of weight[c, k] * x[t - taps + 1 + k, c])

where x of tokens before the first one is 0. A row keeps x of its last taps - 1 tokens. Sums go from the
oldest token on.
"""

import torch
from torch.nn.functional import silu

from kernels.ops.delta.spans import Spans


def convolution(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, spans: Spans) -> torch.Tensor:
    """x: [T, C]; weight: [taps, C] float32; state: [rows, taps - 1, C] float32, which changes. Returns [T, C]
    float32."""
    taps, out = len(weight), torch.empty(x.shape, dtype=torch.float32, device=x.device)
    for row, start, length, first in spans:
        kept = state[row] if start else torch.zeros_like(state[row])
        inputs = torch.cat((kept, x[first : first + length].float()))
        total = inputs[:length] * weight[0]
        for tap in range(1, taps):
            total = total + inputs[tap : tap + length] * weight[tap]
        out[first : first + length] = silu(total)
        state[row] = inputs[length:]
    return out
