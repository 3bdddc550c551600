"""Tokens that must not be chosen: bad words, and stop tokens before there are enough tokens.

logits [A, V] float32, changed in place: a masked token has the logit -inf and can never be chosen; of A rows,
U are masked by N token ids each. What is read and written: U * N entries; and up to A * V to see what a
prohibition leaves. On CUDA: kernels.triton.sampling.forbid_tokens.

A word is its last token and its prefix, nearest token first, so that it lines up with the output's end:

    bad word [5, 8, 3]     last 3   prefix  8   5  ANY ANY
    output ... 5 8         from its end     8   5   ...        -> 3 is forbidden
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

ANY = -1
"""In a prefix: matches any token, and none."""
NOTHING = -2
"""Before the first output token: matches none."""
FEW = 1024
"""Tokens that are looked at first on a CPU: where one of them is left, the others need not be read, which
would take 2 ms for 32 rows of 152,000."""


@dataclass(frozen=True)
class Prohibitions:
    """The state of S slots."""

    ANY: ClassVar = ANY

    last: torch.Tensor  # [S, N] int32
    prefix: torch.Tensor  # [S, W, L] int32: of the first W words; the others have none
    outputs: torch.Tensor  # [S, P] int32: the row's output, from its first token on
    stop_ids: torch.Tensor  # [S, M] int32
    numbers: torch.Tensor  # [S, 5] int32: how many of N, of L and of M count, min_tokens, and how many of W


def forbid_tokens(
    logits: torch.Tensor, batch_index: torch.Tensor, token_ids: torch.Tensor, active: torch.Tensor
) -> None:
    """Masks the given tokens where active; but a row that would have no token left is unchanged.

    batch_index [U] int64, distinct; token_ids [U, N] int64, repeats allowed; active [U, N] bool. A
    token that occurs both active and inactive is masked.
    """
    flat = logits.view(-1)
    index = batch_index[:, None] * logits.shape[-1] + token_ids
    before = flat[index]
    # The minimum, not a plain write: it does not depend on which of two equal ids comes last.
    mask = torch.where(active, -torch.inf, torch.inf).to(logits.dtype)
    flat.scatter_reduce_(0, index.view(-1), mask.view(-1), "amin")
    left = _has_any(logits, batch_index)
    flat.scatter_(0, index.view(-1), torch.where(left[:, None], flat[index], before).view(-1))


def _has_any(logits: torch.Tensor, batch_index: torch.Tensor) -> torch.Tensor:
    """[U] bool: whether the row has a token that is not masked."""
    some = logits[:, :FEW].amax(-1)[batch_index] > -torch.inf
    if logits.device.type == "cpu" and bool(some.all()):
        return some
    return logits.amax(-1)[batch_index] > -torch.inf


def prohibit(logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, state: Prohibitions) -> None:
    """Masks bad words that the output would complete, then stop tokens where it is shorter than min_tokens;
    each of the two only if it leaves the row a token above -inf. On a CPU, in place.

    logits: [A, V] float32, contiguous. slots: [A] the state of each row, -1: none; positions: [A] tokens of
    its output.
    """
    users = (slots >= 0).nonzero()[:, 0]
    slots, positions = slots[users], positions[users, None]
    num_words, _, num_stops, min_tokens, num_longer = state.numbers[slots, :, None].unbind(1)
    bad = torch.arange(state.last.shape[1]) < num_words  # [U, N]
    most_longer, longest = state.prefix.shape[1:]
    back = positions - 1 - torch.arange(longest)
    tail = state.outputs[slots[:, None], back.clamp(0, state.outputs.shape[1] - 1)]
    tail.masked_fill_(back < 0, NOTHING)
    prefix = state.prefix[slots]
    complete = ((prefix == ANY) | (prefix == tail[:, None])).all(-1)
    bad[:, :most_longer] &= (complete | (torch.arange(most_longer) >= num_longer))[:, : bad.shape[1]]
    early = (torch.arange(state.stop_ids.shape[1]) < num_stops) & (positions < min_tokens)
    for token_ids, active in ((state.last[slots], bad), (state.stop_ids[slots], early)):
        if bool(active.any()):
            forbid_tokens(logits, users, token_ids.long(), active)
