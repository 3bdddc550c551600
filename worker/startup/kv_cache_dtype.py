"""The dtype of keys and values: --kv-cache-dtype."""

import torch

from kernels.api import e4m3
from pagewire.internal.v1 import worker_pb2

FP8_E4M3 = "fp8_e4m3"


def stored_dtype(initialize: worker_pb2.Initialize, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of keys and values of a model that computes in `dtype`."""
    return e4m3.E4M3 if initialize.kv_cache_dtype == FP8_E4M3 else dtype
