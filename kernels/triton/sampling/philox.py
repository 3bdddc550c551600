"""kernels.ops.sampling.philox on CUDA: the uniform number of (seed, sequence index, position), as in
docs/sampling.md.

    words = Philox4x32-10(counter = (index, position, 0, 0), key = (seed mod 2^32, seed div 2^32))
    u     = floor((2^32 * words[0] + words[1]) / 2^11) / 2^53

Triton's own generator has the constants and the order of Random123; integer arithmetic: the number is the
CPU's, bit for bit.
"""

import triton
import triton.language as tl


@triton.jit
def uniform53(seed, index, position):
    """Returns float64 in [0, 1). seed: int64 or uint64; index, position: 32 bits."""
    zero = index.to(tl.uint32) * 0
    high, low, _, _ = tl.philox(seed, index.to(tl.uint32), position.to(tl.uint32), zero, zero)
    bits = ((high.to(tl.uint64) << 32) | low.to(tl.uint64)) >> 11
    return bits.to(tl.float64) * 1.1102230246251565e-16  # 2^-53
