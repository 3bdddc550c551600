"""What the core is told once a worker is ready."""

import torch

from kernels.ops.attention.e4m3 import E4M3
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.config.hf_config import ModelConfig
from worker.memory.kv_cache import KVCache
from worker.memory.swap_space import SwapSpace
from worker.startup.kv_cache_dtype import FP8_E4M3
from worker.startup.model import dtype_name


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
            kv_cache_dtype=FP8_E4M3 if cache.layout.cache_dtype == E4M3 else "",
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
