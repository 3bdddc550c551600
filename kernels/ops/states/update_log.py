"""What drafted tokens do to the state of a head, kept until it is known how many of them are accepted.

A token changes a state S [N, D] in one form, in gated delta nets and in Mamba-2 layers alike:

    S = decay * S + key (x) change         decay: a number, key: [N], change: [D]

A step with a draft leaves the state behind the tokens that are certain, and logs what each drafted one would
do. The row's next step does first what the accepted ones do. So a refused token never touches a state, and an
accepted one changes it by the operations of plain decoding, in their order: the bits are the same.

An entry of the log has W float32: the key, the change, and the decay, each beginning at a multiple of 16.
"""

import torch

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


def replay(state: torch.Tensor, log: torch.Tensor, count: int) -> torch.Tensor:
    """Returns a row's state [H, N, D] behind the first `count` updates of its log [H, K, W]."""
    keys, values = state.shape[1:]
    for at in range(count):
        key, change, decay = log[:, at].split_with_sizes((padded(keys), padded(values), PADDING), dim=1)
        state = state * decay[:, :1, None] + key[:, :keys, None] * change[:, None, :values]
    return state
