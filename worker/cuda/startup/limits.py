"""Checks at start-up of what the device and the kernels support; each refusal names an alternative."""

import ctypes
import logging
import os
import shutil
import sysconfig
from pathlib import Path

import torch

from kernels.triton import requirements
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire.speculation import METHOD_NAMES
from worker.config.decoder import DecoderConfig, LatentConfig
from worker.config.gemma4 import Gemma4Config
from worker.config.hf_config import ModelConfig
from worker.cuda.device import CudaDevice, Device, HostDevice
from worker.cuda.rows import state_numbers
from worker.cuda.startup.memory import GIB

logger = logging.getLogger(__name__)

WHAT = "cannot use this device"
LEAST_BLOCK = 16
"""Least tokens per block: the keys of a head are then contiguous pieces of a kilobyte and more."""
_MOST_NUMBERS = (1 << 31) - 1


def find_device(rank: int = 0, ranks: int = 1) -> Device:
    """Returns the CUDA device of one of so many ranks, each of which has its own, or a HostDevice under
    Triton's interpreter. Raises StartupError when there is none."""
    if requirements.INTERPRETED:
        requirements.prepare()
        return HostDevice()
    _check_driver()
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "torch finds no CUDA device" if built else "this torch is built without CUDA"
        todo = "look at nvidia-smi and CUDA_VISIBLE_DEVICES" if built else "install a CUDA build of torch"
        raise StartupError(WHAT, why, f"{todo}, or use --device cpu")
    if ranks > 1 and (found := torch.cuda.device_count()) < ranks:
        raise StartupError(
            WHAT,
            f"{ranks} ranks take a CUDA device each, and torch finds {found}",
            "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or start fewer ranks",
        )
    _check_compiler()
    logger.info("ptxas %s assembles kernels", requirements.prepare())
    return CudaDevice(rank)


def _check_driver() -> None:
    """Raises StartupError where the driver is older than the CUDA that torch is built with."""
    driver, built = _driver_version(), torch.version.cuda
    if driver is not None and built is not None and driver[0] < int(built.split(".")[0]):
        has = ".".join(map(str, driver))
        raise StartupError(
            WHAT,
            f"the driver supports CUDA {has}, and this torch is built with CUDA {built}",
            f"update the driver, or install a torch for CUDA {has}, or use --device cpu",
        )


def _driver_version() -> tuple[int, int] | None:
    """Returns the CUDA version that the driver supports, such as (13, 0); None without a driver."""
    number = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError):
        return None
    return number.value // 1000, number.value % 1000 // 10


def _check_compiler() -> None:
    """Raises StartupError without a C compiler: Triton compiles its binding to the driver, once."""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        raise StartupError(
            WHAT, "Triton finds no C compiler", "install gcc, or name one in CC, or use --device cpu"
        )
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        raise StartupError(
            WHAT, f"Triton finds no Python.h in {headers}", "install python3-dev, or use --device cpu"
        )


def check_kernels(
    device: Device,
    dtype: torch.dtype,
    config: ModelConfig,
    block_size: int,
    stored: torch.dtype | None = None,
) -> None:
    """Raises StartupError unless the kernels support this model on the device. stored: the dtype of keys and
    values; None: dtype."""
    if isinstance(config, DecoderConfig) and config.latent is not None:
        _check_latent(config.latent)
    if isinstance(config, Gemma4Config):
        why = f"{config.architecture} has heads of two sizes, which run on CPUs alone"
        raise StartupError(WHAT, why, "use --device cpu")
    for cache_dtype in (None, stored):
        reason = requirements.why_not(device.place, dtype, config.head_dim, cache_dtype)
        if reason is not None:
            todo = "use --device cpu" if cache_dtype is None else "leave --kv-cache-dtype out"
            raise StartupError(WHAT, reason, todo)
    if config.head_dim % 2:
        raise StartupError(
            WHAT, f"the head size is {config.head_dim}; even ones are supported", "use --device cpu"
        )
    if block_size < LEAST_BLOCK or block_size & (block_size - 1):
        raise StartupError(
            WHAT, f"--block-size is {block_size}", "use a power of two from 16 on: 16, 32, 64 or 128"
        )


def refuse_drafts(speculation: worker_pb2.Speculation | None) -> None:
    """Raises StartupError where a model whose layers keep a state per row is to verify drafts."""
    if speculation is not None:
        raise StartupError(
            WHAT,
            f"--speculate {METHOD_NAMES[speculation.method]}: layers of this model keep a state per row, and"
            " no kernel for CUDA takes back what refused drafts do to it",
            "leave --speculate out, or use --device cpu",
        )


def _check_latent(latent: LatentConfig) -> None:
    """Raises StartupError for latents that are too large for a program's registers."""
    for name, size, most in (
        ("kv_lora_rank", latent.rank, requirements.LARGEST_RANK),
        ("qk_rope_head_dim", latent.rotary_dim, requirements.LARGEST_ROTARY),
    ):
        if size > most:
            raise StartupError(WHAT, f"{name} is {size}; up to {most} is supported", "use --device cpu")


def check_sizes(initialize: worker_pb2.Initialize, max_model_len: int) -> None:
    """Raises StartupError for sizes that the worker does not support on one device."""
    if max(1, initialize.data_parallel_size) > 1:
        raise StartupError(
            WHAT,
            f"{initialize.data_parallel_size} engine cores would share one device",
            "leave --data-parallel-size out, or start a `pagewire engine` for each device, with"
            " CUDA_VISIBLE_DEVICES",
        )
    if state_numbers(initialize.max_num_seqs, max_model_len, initialize.block_size) > _MOST_NUMBERS:
        raise StartupError(
            WHAT,
            f"{initialize.max_num_seqs} rows of {max_model_len} tokens are more than 32-bit numbers count",
            "use a smaller --max-num-seqs or --max-model-len",
        )


def check_weights(weight_bytes: int, dtype: torch.dtype, device: Device, utilization: float) -> None:
    """Raises StartupError when the weights do not fit, or not into what --gpu-memory-utilization leaves
    beside other processes. Call it before anything is allocated."""
    memory = device.memory()
    used = memory.total - memory.free
    weights = f"the weights take {weight_bytes / GIB:.1f} GiB in {str(dtype).removeprefix('torch.')}"
    if weight_bytes > memory.free:
        todo = "use a larger device or a smaller model"
        if dtype == torch.float32:
            todo = "use --dtype bfloat16, which halves it, a larger device, or a smaller model"
        raise StartupError(
            WHAT,
            f"{weights}, and {device.name} has {memory.free / GIB:.1f} GiB free of {memory.total / GIB:.1f}",
            todo,
        )
    room = int(utilization * memory.total) - used
    if weight_bytes >= room:
        raise StartupError(
            WHAT,
            f"{weights}, and {device.name} has {memory.total / GIB:.1f} GiB, of which {used / GIB:.1f} are in"
            f" use, so that {max(0, room) / GIB:.1f} are left at --gpu-memory-utilization {utilization:g}",
            "end other processes on the device, which nvidia-smi lists, or use a higher"
            " --gpu-memory-utilization or a smaller model",
        )


def warn_of_float32(dtype: torch.dtype) -> None:
    """Logs that float32 is slow: its products run without TF32, which rounds."""
    if dtype == torch.float32:
        logger.warning(
            "float32 products do not use the matrix units, and take some 16 times as long as those of"
            " --dtype bfloat16"
        )
