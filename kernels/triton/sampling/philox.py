"""kernels.ops.sampling.philox on CUDA: the uniform number of (seed, sequence index, position), as in
docs/sampling.md.

    words = Philox4x32-10(counter = (index, position, 0, 0), key = (seed mod 2^32, seed div 2^32))
    u     = floor((2^32 * words[0] + words[1]) / 2^11) / 2^53

Triton's own generator has the constants and the order of Random123; integer arithmetic: the number is the
CPU's, bit for bit.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def uniform53(seed, index, position):
    """Returns float64 in [0, 1). seed: int64 or uint64; index, position: 32 bits."""
    zero = index.to(tl.uint32) * 0
    high, low, _, _ = tl.philox(seed, index.to(tl.uint32), position.to(tl.uint32), zero, zero)
    bits = ((high.to(tl.uint64) << 32) | low.to(tl.uint64)) >> 11
    return bits.to(tl.float64) * 1.1102230246251565e-16  # 2^-53


@triton.jit(do_not_specialize=["count"])
def _uniform_kernel(seeds, indexes, positions, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    seed = tl.load(seeds + at, mask=inside, other=0)
    index, position = (
        tl.load(indexes + at, mask=inside, other=0),
        tl.load(positions + at, mask=inside, other=0),
    )
    tl.store(out + at, uniform53(seed, index, position), mask=inside)


def uniforms(seeds: torch.Tensor, indexes: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns the numbers [A] float64. seeds: [A] int64, the bits of a uint64; indexes, positions: [A]
    int32."""
    count = seeds.shape[0]
    out = torch.empty(count, dtype=torch.float64, device=seeds.device)
    if count:
        _uniform_kernel[(triton.cdiv(count, 128),)](seeds, indexes, positions, out, count, 128, num_warps=4)
    return out
