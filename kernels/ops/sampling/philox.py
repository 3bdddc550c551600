"""Philox4x32-10: a counter-based generator. The same key and counter give the same 128 bits, anywhere.

A round maps the counter (c0, c1, c2, c3) under the key (k0, k1), all words of 32 bits, to

    (hi(M1 c2) ^ c1 ^ k0,  lo(M1 c2),  hi(M0 c0) ^ c3 ^ k1,  lo(M0 c0))

where hi and lo are the halves of the 64-bit product; between rounds k0 += W0 and k1 += W1 (mod 2^32).
Ten rounds. Nothing is carried from one number to the next, so a generator has no state to lose.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the known
answers of its library, Random123, are in the test.

On CUDA: kernels.triton.sampling.draws.
"""

import torch

from kernels.ops.sampling.philox_constants import M0, M1, MASK, ROUNDS, W0, W1


def philox4x32_reference(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """The formula, one block in Python integers. All words in [0, 2^32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return c0, c1, c2, c3


def philox4x32(counters: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Blocks for N counters: [N, 4] int64 and keys [N, 2] int64, words in [0, 2^32) -> [N, 4] int64.

    Torch has no arithmetic on unsigned words, so words live in int64. A product wraps around at 64
    bits and may come out negative: its bits are right, and the mask drops the sign that the shift
    brings in. The two multiplications of a round are one operation on [N, 2], as launches and not
    arithmetic are what this costs (about 60 small operations, 60 us for any N up to a few hundred).
    """
    device = counters.device
    multipliers = torch.tensor([M0, M1], device=device)
    increments = torch.tensor([W0, W1], device=device)
    even, odd, key = counters[:, 0::2], counters[:, 1::2], keys
    for _ in range(ROUNDS):
        product = (even * multipliers).flip(-1)
        even = ((product >> 32) ^ odd ^ key) & MASK
        odd = product & MASK
        key = (key + increments) & MASK
    return torch.stack((even, odd), dim=-1).flatten(1)


def uniform53_reference(words: tuple[int, int, int, int]) -> float:
    """The uniform number of one block: the top 53 bits of the 64-bit number x0 x1, over 2^53."""
    return ((words[0] << 32 | words[1]) >> 11) / (1 << 53)


def uniform53(words: torch.Tensor) -> torch.Tensor:
    """The uniform numbers of blocks [N, 4] int64 -> [N] float64, multiples of 2^-53 in [0, 1)."""
    return ((words[:, 0] << 21) | (words[:, 1] >> 11)).to(torch.float64) * 2.0**-53
