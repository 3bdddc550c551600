"""The random number of a token: kernels.ops.sampling.philox, one block, in registers."""

from kernels.ops.sampling.philox_constants import M0, M1, MASK, ROUNDS, W0, W1


def uniform(key_low: int, key_high: int, index: int, position: int) -> float:
    """Words below 2^32 in 64 bits: products wrap around, and a mask drops the sign that a shift brings in."""
    c0, c1, c2, c3 = index, position, 0, 0
    for _ in range(ROUNDS):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1 = ((p1 >> 32) ^ c1 ^ key_low) & MASK, p1 & MASK
        c2, c3 = ((p0 >> 32) ^ c3 ^ key_high) & MASK, p0 & MASK
        key_low, key_high = (key_low + W0) & MASK, (key_high + W1) & MASK
    return ((c0 << 21) | (c1 >> 11)) * 2.0**-53
