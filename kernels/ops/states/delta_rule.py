"""The gated delta rule (Yang, Kautz, Hatamizadeh: Gated Delta Networks, arXiv 2412.06464), token by token.

A value head h has a state S [N, D], which begins with zeros. For a token with query q and key k, both of its
group of heads, and value v:

    S = exp(-decay[h] * softplus(a + bias[h])) * S
    S = S + k (v - k S) sigmoid(b)         k of length 1
    out = q S                              q of length N ** -0.5

The sum of squares of q and k has 1e-6 added to it. All of it is float32. A token's result depends on the
tokens of its row up to it alone, bit for bit, however they are cut into steps.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

from kernels.ops.states.spans import AnySpans, Spans
from kernels.ops.states.update_log import RowState


@dataclass(frozen=True)
class DeltaShape:
    """Heads of a gated delta net."""

    key_heads: int  # G
    value_heads: int  # H, a multiple of G: each query and key serves H / G value heads in a row
    key_dim: int  # N, of a query and a key
    value_dim: int  # D

    @property
    def channels(self) -> int:
        """C: values of the queries, keys and values of a token."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def values(self) -> int:
        """H * D."""
        return self.value_heads * self.value_dim

    @property
    def state(self) -> tuple[int, int, int]:
        """H, N, D: the state of a row."""
        return self.value_heads, self.key_dim, self.value_dim


def delta_rule(
    mixed: torch.Tensor,
    gates: torch.Tensor,
    decay: torch.Tensor,
    bias: torch.Tensor,
    state: torch.Tensor,
    shape: DeltaShape,
    spans: AnySpans,
    log: torch.Tensor | None = None,
) -> torch.Tensor:
    """mixed: [T, C] float32, queries, keys and values of all heads; gates: [T, 2 H], b and a; decay, bias:
    [H] float32; state: [rows, H, N, D] float32, which changes, and log: [rows, H, K, W] float32, of at most K
    drafted tokens (kernels.ops.states.update_log); None: there are none. Returns [T, H, D] float32. spans: on
    the host."""
    assert isinstance(spans, Spans)
    tokens, keys = len(mixed), shape.key_heads * shape.key_dim
    query, key, value = mixed.split_with_sizes((keys, keys, shape.values), dim=1)
    of_keys = tokens, shape.key_heads, shape.key_dim
    query = unit_vectors(query.reshape(of_keys)) * shape.key_dim**-0.5
    key = unit_vectors(key.reshape(of_keys))
    repeats = shape.value_heads // shape.key_heads
    query, key = query.repeat_interleave(repeats, 1), key.repeat_interleave(repeats, 1)
    b, a = gates.float().split_with_sizes((shape.value_heads, shape.value_heads), dim=1)
    kept, learned = torch.exp(-decay * softplus(a + bias)), torch.sigmoid(b)
    value = value.reshape(tokens, shape.value_heads, shape.value_dim)
    out = torch.empty_like(value)
    for span in spans:
        own = RowState(span, state, log)
        for t in range(span.first, span.first + span.length):
            faded = own.value * kept[t, :, None, None]
            known = (faded * key[t, :, :, None]).sum(1)
            change = (value[t] - known) * learned[t, :, None]
            new = faded + key[t, :, :, None] * change[:, None, :]
            out[t] = (new * query[t, :, :, None]).sum(1)
            own.put(t - span.first, new, key[t], change, kept[t])
    return out


def unit_vectors(x: torch.Tensor) -> torch.Tensor:
    """[..., N] -> [..., N], each of length 1, but for what is added to its square."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
