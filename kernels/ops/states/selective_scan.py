"""The selective scan of Mamba-2 (Dao, Gu: Transformers are SSMs, arXiv 2405.21060), token by token.

A head h has a state S [N, P], which begins with zeros. For a token with values x [P], a step t, and b and c
[N] of its group of heads:

    d = softplus(step_factor * t + bias[h])
    S = exp(-decay[h] * d) * S + b (d * x)
    out = c S + skip[h] * x

All of it is float32. A token's result depends on the tokens of its row up to it alone, bit for bit, however
they are cut into steps.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

from kernels.ops.states.spans import AnySpans, Spans
from kernels.ops.states.update_log import RowState


@dataclass(frozen=True)
class MambaShape:
    """Heads of a Mamba-2 layer."""

    heads: int  # H
    head_dim: int  # P
    groups: int  # G, which divides H: b and c of a group serve H / G heads in a row
    state_size: int  # N

    @property
    def channels(self) -> int:
        """C: values of x, b and c of a token."""
        return self.values + 2 * self.groups * self.state_size

    @property
    def values(self) -> int:
        """H * P."""
        return self.heads * self.head_dim

    @property
    def state(self) -> tuple[int, int, int]:
        """H, N, P: the state of a row."""
        return self.heads, self.state_size, self.head_dim


@dataclass(frozen=True)
class ScanRates:
    """What a layer has learned of each head."""

    packed: torch.Tensor  # [3, H] float32, contiguous: decay, bias, skip
    step_factor: float = 1.0

    @staticmethod
    def of(
        decay: torch.Tensor, bias: torch.Tensor, skip: torch.Tensor, step_factor: float = 1.0
    ) -> "ScanRates":
        """[H] each."""
        return ScanRates(torch.stack((decay, bias, skip)).float(), step_factor)

    @property
    def decay(self) -> torch.Tensor:
        """[H], of states."""
        return self.packed[0]

    @property
    def bias(self) -> torch.Tensor:
        """[H], of steps."""
        return self.packed[1]

    @property
    def skip(self) -> torch.Tensor:
        """[H]: how much of x passes by."""
        return self.packed[2]


def selective_scan(
    mixed: torch.Tensor,
    steps: torch.Tensor,
    rates: ScanRates,
    state: torch.Tensor,
    shape: MambaShape,
    spans: AnySpans,
    log: torch.Tensor | None = None,
) -> torch.Tensor:
    """mixed: [T, C] float32, x, b and c of all heads and groups; steps: [T, H]; state: [rows, H, N, P]
    float32, which changes, and log: [rows, H, K, W] float32, of at most K drafted tokens
    (kernels.ops.states.update_log); None: there are none. Returns [T, H * P] float32. spans: on the host."""
    assert isinstance(spans, Spans)
    tokens, of_groups = len(mixed), shape.groups * shape.state_size
    x, b, c = mixed.split_with_sizes((shape.values, of_groups, of_groups), dim=1)
    x = x.reshape(tokens, shape.heads, shape.head_dim)
    repeats = shape.heads // shape.groups
    b = b.reshape(tokens, shape.groups, shape.state_size).repeat_interleave(repeats, 1)
    c = c.reshape(tokens, shape.groups, shape.state_size).repeat_interleave(repeats, 1)
    out = x * rates.skip[:, None]
    for span in spans:
        own = RowState(span, state, log)
        for t in range(span.first, span.first + span.length):
            size = softplus(steps[t].float() * rates.step_factor + rates.bias)
            kept, added = torch.exp(-rates.decay * size), x[t] * size[:, None]
            new = own.value * kept[:, None, None] + b[t, :, :, None] * added[:, None, :]
            out[t] += (new * c[t, :, :, None]).sum(1)
            own.put(t - span.first, new, b[t], added, kept)
    return out.flatten(1)
