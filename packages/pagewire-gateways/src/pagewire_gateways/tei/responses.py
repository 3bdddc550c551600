"""Parts of responses of tei.v1."""

import time

from frontend.streams.pooling import PoolingUsage
from pagewire_gateways.protos import tei_pb2


def metadata_of(began: int, num_chars: int, usage: PoolingUsage) -> tei_pb2.Metadata:
    """Returns sizes and times of a request that began at `began` (time.monotonic_ns())."""
    return tei_pb2.Metadata(
        compute_chars=num_chars,
        compute_tokens=usage.prompt_tokens,
        total_time_ns=time.monotonic_ns() - began,
        tokenization_time_ns=usage.tokenization_ns,
        queue_time_ns=usage.queue_ns,
        inference_time_ns=usage.inference_ns,
    )
