"""Whether the kernels of this folder compute, and can. Does not import triton.

Set TRITON_INTERPRET=1 before the start to run them on tensors in main memory, in Triton's interpreter:
slow, and for tests alone. Its bfloat16 arithmetic is wrong (Triton 3.6 to 3.9 compute on the bits as
integers), so that float32 and float16 are what it is good for; the tests of kernels teach it bfloat16.
"""

import os
from functools import lru_cache
from importlib.util import find_spec

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LEAST_CAPABILITY = (8, 0)
"""Ampere: the first with bfloat16 products and asynchronous copies, which the sizes here count on."""
E4M3_CAPABILITY = (8, 9)
"""Ada: the first that converts from and to float8 e4m3."""
LARGEST_HEAD = 256
LARGEST_QUANTIZED_HEAD = 128
"""Over keys and values of 8 bits: larger ones would spill."""
LARGEST_RANK, LARGEST_ROTARY = 512, 128
"""Of latents: larger ones do not fit into a program's registers."""
BUFFER_BYTES = 64 << 20
"""Of KV blocks that a caller should have copied at once, which goes through a buffer: 32 blocks of 16 tokens
of the 8B shape."""
DEFAULT_PROCESSORS = 132
"""Multiprocessors of an H100 or H200: what sizes are chosen for where there is no device to ask."""


def uses_triton(tensor: torch.Tensor) -> bool:
    """Whether an operation on this tensor is a Triton kernel."""
    return tensor.is_cuda or INTERPRETED


def why_not(
    device: torch.device, dtype: torch.dtype, head_dim: int, cache_dtype: torch.dtype | None = None
) -> str | None:
    """What stands in the way, in words; None where the kernels can run. cache_dtype: default dtype."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        name, has = torch.cuda.get_device_name(device), ".".join(map(str, capability))
        if capability < LEAST_CAPABILITY:
            return f"{name} has compute capability {has}; 8.0 (A100) and later are supported"
        if cache_dtype == torch.float8_e4m3fn and capability < E4M3_CAPABILITY:
            return f"{name} has compute capability {has}; a KV cache of 8 bits needs 8.9 (L4, H100) or later"
    elif not INTERPRETED:
        return f"the kernels are for CUDA, not for {device.type}"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"they are for float32, float16 and bfloat16, not for {dtype}"
    if cache_dtype not in (None, dtype, torch.float8_e4m3fn):
        return f"the KV cache is {dtype} or float8_e4m3fn, not {cache_dtype}"
    if head_dim > LARGEST_HEAD:
        return f"the head size is {head_dim}; up to {LARGEST_HEAD} is supported"
    if cache_dtype == torch.float8_e4m3fn and head_dim > LARGEST_QUANTIZED_HEAD:
        most = LARGEST_QUANTIZED_HEAD
        return f"the head size is {head_dim}; up to {most} is supported with a KV cache of 8 bits"
    return None


def prepare() -> str | None:
    """Prepares triton, before a kernel is compiled: in the interpreter, or for the first device. Returns the
    version of the assembler; None: kernels are interpreted."""
    if INTERPRETED:
        from kernels.triton.interpreter import compute_as_a_device_does

        compute_as_a_device_does()
        return None
    from kernels.triton.assembler import choose_assembler
    from kernels.triton.kernel_cache import use_checked_cache

    use_checked_cache()
    return choose_assembler(torch.cuda.get_device_capability(0))


@lru_cache(maxsize=16)
def num_processors(device: torch.device) -> int:
    """Multiprocessors of the device."""
    if device.type != "cuda":
        return DEFAULT_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def next_power_of_2(n: int) -> int:
    """The least power of two that is not below n >= 1: what tl.arange wants."""
    return 1 << (n - 1).bit_length()
