"""kernels.ops.sampling.token_masks.prohibit on CUDA: bad words and then stop tokens, in place.

    bad words    x[last_n] <- -inf   for each word n of the row whose prefix the output ends with
    stop tokens  x[stop_m] <- -inf   for each m, while position < min_tokens
                 each of the two only if it leaves the row a token above -inf

One program per row: it saves the logits that it masks, masks them, searches for one that is left, mostly in
the first tile, and restores them where there is none. NaN stays NaN: the sampler reports such a row. logits:
[A, V] float32, rows contiguous; slots: [A], the state of each, -1: none; positions: [A] int32, tokens of the
output. Bytes moved: 12 for each masked logit, 4 * L for each word, and a tile. Speed: not yet measured on a
GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.ops.sampling.token_masks import Prohibitions

ENTRIES = 128
"""Forbidden tokens processed at a time: one per thread."""
WIDTH = 1024
"""Logits read at a time in the search for one that is left: 8 per thread."""


@triton.jit
def _complete(prefix, outputs, at, inside, position, longest, num_longer, room):
    """Whether the output ends with the prefixes of the words `at`. longest: of the row; room: L."""
    complete = inside
    for n in range(0, longest):
        want = tl.load(prefix + at * room + n, mask=inside & (at < num_longer), other=-1)
        has = tl.full([], -2, tl.int32)  # before the first token: matches none
        if n < position:
            has = tl.load(outputs + position - 1 - n)
        complete = complete & ((want == -1) | (want == has))
    return complete


@triton.jit
def _forbid(
    x,  # [V]: the row's logits
    saved,
    ids,
    prefix,
    outputs,
    number,
    position,
    longest,
    num_longer,
    room,
    vocab_size,
    ENTRIES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Masks `number` ids of one row, as far as their prefixes are there."""
    for start in range(0, number, ENTRIES):
        at = start + tl.arange(0, ENTRIES)
        token = tl.load(ids + at, mask=at < number, other=0)
        tl.store(saved + at, tl.load(x + token, mask=at < number, other=0.0), mask=at < number)
    tl.debug_barrier()  # an id may be there twice: all are kept before one is masked
    for start in range(0, number, ENTRIES):
        at = start + tl.arange(0, ENTRIES)
        complete = _complete(prefix, outputs, at, at < number, position, longest, num_longer, room)
        token = tl.load(ids + at, mask=complete, other=0)
        before = tl.load(saved + at, mask=complete, other=0.0)
        tl.store(x + token, -float("inf"), mask=complete & (before == before))
    tl.debug_barrier()
    left = tl.zeros([], tl.int32)
    for start in range(0, vocab_size, WIDTH):
        if left == 0:
            at = start + tl.arange(0, WIDTH)
            scores = tl.load(x + at, mask=at < vocab_size, other=-float("inf"))
            left = tl.max((scores > -float("inf")).to(tl.int32), 0)
    if left == 0:
        for start in range(0, number, ENTRIES):
            at = start + tl.arange(0, ENTRIES)
            token = tl.load(ids + at, mask=at < number, other=0)
            tl.store(x + token, tl.load(saved + at, mask=at < number, other=0.0), mask=at < number)
    tl.debug_barrier()


@triton.jit(
    do_not_specialize=["most_words", "most_longer", "prefix_room", "output_room", "most_stops", "most"]
)
def _forbid_kernel(
    logits,  # [A, V]
    slots,  # [A]
    positions,  # [A]
    last,  # [S, most_words]
    prefix,  # [S, most_longer, prefix_room]
    outputs,  # [S, output_room]
    stop_ids,  # [S, most_stops]
    numbers,  # [S, 5]
    saved,  # [A, most]
    stride,
    vocab_size,
    most_words,
    most_longer,
    prefix_room,
    output_room,
    most_stops,
    most,
    ENTRIES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot, position = tl.load(slots + row).to(tl.int64), tl.load(positions + row)
    if slot < 0:
        return
    x, kept, said = logits + row * stride, saved + row * most, outputs + slot * output_room
    num_words, longest = tl.load(numbers + 5 * slot), tl.load(numbers + 5 * slot + 1)
    num_stops, min_tokens = tl.load(numbers + 5 * slot + 2), tl.load(numbers + 5 * slot + 3)
    if num_words > 0:
        _forbid(
            x,
            kept,
            last + slot * most_words,
            prefix + slot * most_longer * prefix_room,
            said,
            num_words,
            position,
            longest,
            tl.load(numbers + 5 * slot + 4),
            prefix_room,
            vocab_size,
            ENTRIES,
            WIDTH,
        )
    if (num_stops > 0) & (position < min_tokens):
        stops = stop_ids + slot * most_stops
        _forbid(x, kept, stops, prefix, said, num_stops, position, 0, 0, 0, vocab_size, ENTRIES, WIDTH)


def forbid_tokens(
    logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, state: Prohibitions
) -> None:
    """In place."""
    rows, vocab_size = logits.shape
    most_words, most_stops = state.last.shape[1], state.stop_ids.shape[1]
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    assert slots.shape == positions.shape == (rows,) and state.numbers.shape[1] == 5
    most = max(1, most_words, most_stops)
    if rows:
        _forbid_kernel[(rows,)](
            logits,
            slots,
            positions,
            state.last,
            state.prefix,
            state.outputs,
            state.stop_ids,
            state.numbers,
            torch.empty((rows, most), dtype=torch.float32, device=logits.device),
            logits.stride(0),
            vocab_size,
            most_words,
            state.prefix.shape[1],
            state.prefix.shape[2],
            state.outputs.shape[1],
            most_stops,
            most,
            ENTRIES=ENTRIES,
            WIDTH=WIDTH,
            num_warps=4,
        )
