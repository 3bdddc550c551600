"""What drafted tokens do to the state of a head, kept until it is known how many of them are accepted.

A token changes a state S [N, D] in one form, in gated delta nets and in Mamba-2 layers alike:

    S = decay * S + key (x) change         decay: a number, key: [N], change: [D]

A step with a draft leaves the state behind the tokens that are certain, and logs what each drafted one would
do. The row's next step does first what the accepted ones do. So a refused token never touches a state, and an
accepted one changes it by the operations of plain decoding, in their order: the bits are the same.

An entry of the log has W float32: the key, the change, and the decay, each beginning at a multiple of 16.
"""

import torch

from kernels.ops.states.spans import RowSpan

PADDING = 16


def padded(count: int) -> int:
    """Values that `count` of them take in an entry."""
    return (count + PADDING - 1) // PADDING * PADDING


def update_width(keys: int, values: int) -> int:
    """W, of a state [keys, values]."""
    return padded(keys) + padded(values) + PADDING


def log_update(entry: torch.Tensor, key: torch.Tensor, change: torch.Tensor, decay: torch.Tensor) -> None:
    """Writes what a token does to all heads. entry: [H, W]; key: [H, N]; change: [H, D]; decay: [H]."""
    keys, values = key.shape[1], change.shape[1]
    entry[:, :keys] = key
    entry[:, padded(keys) : padded(keys) + values] = change
    entry[:, padded(keys) + padded(values)] = decay


class RowState:
    """The states of a row's heads while the tokens of a step change them, one after the other."""

    def __init__(self, span: RowSpan, states: torch.Tensor, log: torch.Tensor | None) -> None:
        """states: [rows, H, N, D] float32, those before the step; log: [rows, H, K, W] float32, of at most K
        drafted tokens; None: there are none."""
        self._span, self._states, self._log = span, states, None if log is None else log[span.row]
        found = states[span.row] if span.start else torch.zeros_like(states[span.row])
        self.value = found if self._log is None else replay(found, self._log, span.replayed)
        """[H, N, D]"""

    def put(self, t: int, value: torch.Tensor, *update: torch.Tensor) -> None:
        """Takes the states behind token `t` of the step's tokens of the row, and keeps them where the span
        says. update: what the token did, as for log_update()."""
        self.value, span = value, self._span
        for target in span.targets(t + 1):
            self._states[target] = value
        if t + 1 == span.certain:
            self._states[span.row] = value
        if t >= span.certain and self._log is not None:
            log_update(self._log[:, t - span.certain], *update)


def replay(state: torch.Tensor, log: torch.Tensor, count: int) -> torch.Tensor:
    """Returns a row's state [H, N, D] behind the first `count` updates of its log [H, K, W]."""
    keys, values = state.shape[1:]
    for at in range(count):
        key, change, decay = log[:, at].split_with_sizes((padded(keys), padded(values), PADDING), dim=1)
        state = state * decay[:, :1, None] + key[:, :keys, None] * change[:, None, :values]
    return state
