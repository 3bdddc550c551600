"""What the core is told once a worker is ready."""

import torch

from kernels.api import e4m3
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.config.hf_config import ModelConfig
from worker.memory.kv_cache import KVCache
from worker.memory.swap_space import SwapSpace
from worker.startup.model import dtype_name

FP8_E4M3 = "fp8_e4m3"
"""A --kv-cache-dtype."""


def stored_dtype(initialize: worker_pb2.Initialize, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of keys and values of a model that computes in `dtype`."""
    return e4m3.E4M3 if initialize.kv_cache_dtype == FP8_E4M3 else dtype


def make_ready(
    config: ModelConfig,
    dtype: torch.dtype,
    max_model_len: int,
    weight_bytes: int,
    cache: KVCache,
    swap_space: SwapSpace,
    prefill_us_per_token: float,
) -> worker_pb2.Ready:
    """Returns the message. Measures how long swapping takes."""
    return worker_pb2.Ready(
        model=engine_pb2.ModelFacts(
            architecture=config.architecture,
            dtype=dtype_name(dtype),
            vocab_size=config.vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=config.eos_token_ids,
            weight_bytes=weight_bytes,
            implementation=config.implementation,
            embedding_size=config.state_size,
            kv_cache_dtype=FP8_E4M3 if cache.layout.cache_dtype == e4m3.E4M3 else "",
        ),
        num_blocks=cache.num_blocks,
        kv_cache_bytes=cache.num_bytes,
        has_states=config.has_states,
        depends_on_prompt_len=config.depends_on_prompt_len,
        device=cache.layout.device.type,
        num_host_blocks=swap_space.num_blocks,
        prefill_us_per_token=prefill_us_per_token,
        swap_us_per_block=swap_space.measure_us_per_block(),
    )
