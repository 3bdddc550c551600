"""Which models several CUDA devices compute with the bits of one, checked before weights are read; and how
their ranks find one another."""

import math
from collections.abc import Callable
from pathlib import Path

import torch

from kernels.api import WeightForms
from kernels.cpu.runtime.rank_link import RankLink
from kernels.triton_ops import TritonOps
from pagewire import __version__
from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf
from pagewire.internal.v1 import worker_pb2
from worker.config.decoder import DecoderConfig
from worker.config.hf_config import ModelConfig, read_config, read_quantization
from worker.cpu.kernel_selection import check_leaves
from worker.cpu.rank_checks import divide_stages
from worker.cpu.rank_memory import Ranks, join, model_digest
from worker.cuda.device import Device
from worker.cuda.rank_group import make_device_groups
from worker.group_shape import group_shape
from worker.models.base import LanguageModel
from worker.models.registry import family_of
from worker.parallel import ALONE, Groups, Placement
from worker.startup.checks import check_split, check_stages

OnWait = Callable[[str, float], None]
_WHAT = "cannot split the model"
_STAGES = "use --pipeline-parallel-size, whose ranks have whole layers"
_ALONE = "leave --tensor-parallel-size and --pipeline-parallel-size out, or use --device cpu"


def join_devices(
    initialize: worker_pb2.Initialize, config: ModelConfig, rank: int, device: Device, on_wait: OnWait
) -> tuple[Groups, Ranks | None]:
    """Returns the groups of this rank, and the others, once all are here and are found alike; None: there are
    none. on_wait: see RankPeers. Raises StartupError before weights are read, RankGone."""
    tensor, stages = group_shape(initialize)
    if tensor * stages == 1:
        return ALONE, None
    model = _check(initialize, config, tensor, stages, device.place)
    starts = divide_stages(config, model, stages) if stages > 1 else ()
    ranks = join(initialize, rank, on_wait, RankLink.plain)
    ranks.check_equal(
        {
            "pagewire": __version__,
            "device": f"{device.name}, {device.arithmetic}",
            "dtype": initialize.dtype,
            "model": model_digest(Path(initialize.model_path)),
        }
    )
    return make_device_groups(ranks, tensor, starts, device.place), ranks


def _check(
    initialize: worker_pb2.Initialize,
    config: ModelConfig,
    tensor: int,
    stages: int,
    place: torch.device,
) -> LanguageModel:
    """Returns the model, without memory for its weights. place: of this rank. Raises StartupError."""
    check_stages(config, stages)
    check_split(config, tensor, initialize.quantization)
    if not isinstance(config, DecoderConfig) or config.bidirectional:
        raise StartupError(_WHAT, f"one GPU computes {config.architecture}", _ALONE)
    for is_wanted, why in (
        (initialize.HasField("speculation"), "--speculate drafts on one GPU"),
        (bool(initialize.max_loras), "adapters (--lora, --lora-folder, --max-loras) are for one GPU"),
        (config.vision is not None, f"one GPU computes {config.architecture}, which encodes images"),
    ):
        if is_wanted:
            raise StartupError(_WHAT, why, _ALONE)
    model = family_of(config).build(config, Placement(torch.float32, torch.device("meta")))
    if tensor > 1:
        _check_shared_layers(initialize, config, tensor, place)
        check_leaves(model, WeightForms.of(""), tensor)
    return model


def _check_shared_layers(
    initialize: worker_pb2.Initialize, config: DecoderConfig, size: int, place: torch.device
) -> None:
    """Raises StartupError for a model whose layers so many GPUs do not share."""
    flag = f"--tensor-parallel-size {size} --device cuda"
    for is_wanted, why in (
        (_is_quantized(Path(initialize.model_path)), "the weights are quantized"),
        (initialize.fast_matmul, "--fast-matmul adds in an order of its own"),
    ):
        if is_wanted:
            raise StartupError(_WHAT, f"{flag}: {why}", _STAGES)
    heads, kv_heads = config.num_heads, config.num_kv_heads
    groups = heads // kv_heads, heads // size // max(1, kv_heads // size)
    if not TritonOps.attends_alike(groups, config.head_dim, place):
        why = f"{flag}: {groups[0]} query heads share a KV head, which GPUs attend to together"
        raise StartupError(_WHAT, why, f"use --tensor-parallel-size {math.gcd(size, kv_heads)}")


def _is_quantized(path: Path) -> bool:
    return is_gguf(path) or read_quantization(read_config(path)) is not None
