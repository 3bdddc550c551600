"""Sizes the swap space. Needs no torch: the simulated worker uses it too."""

from pagewire.errors import StartupError

NO_SWAP_SPACE = "cannot allocate the swap space"
_U32 = (1 << 32) - 1


def choose_num_host_blocks(swap_space_bytes: int, bytes_per_block: int, available: float) -> int:
    """Returns the number of blocks in the swap space. Raises StartupError when it does not fit into memory,
    or has no room for one block.

    available: bytes of unclaimed memory; infinite where the swap space is simulated.
    """
    if 0 < swap_space_bytes < bytes_per_block:
        raise StartupError(
            NO_SWAP_SPACE,
            f"--swap-space is {swap_space_bytes} bytes, but a KV block has {bytes_per_block}",
            "choose a larger --swap-space, or leave it out",
        )
    if swap_space_bytes > max(0, available):
        raise StartupError(
            NO_SWAP_SPACE,
            f"--swap-space is {swap_space_bytes >> 20} MiB, but beside weights and KV cache"
            f" {max(0, int(available)) >> 20} MiB of memory are available",
            "choose a smaller --swap-space, or leave it out",
        )
    return min(swap_space_bytes // bytes_per_block, _U32)


def requested_blocks(blocks: int, num_bytes: int, bytes_per_block: int) -> int:
    """Returns the blocks that --num-blocks or --kv-cache-memory ask for, without the one for padding;
    0: neither does."""
    return blocks or (max(1, num_bytes // bytes_per_block - 1) if num_bytes else 0)
