"""Parts of responses of tei.v1."""

import time
from typing import Protocol

from frontend.streams.pooling import StageTimes
from pagewire_gateways.protos import tei_pb2


class Found(Protocol):
    """What a call found."""

    @property
    def prompt_tokens(self) -> int:
        pass

    @property
    def times(self) -> StageTimes:
        pass


def metadata_of(began: int, num_chars: int, found: Found) -> tei_pb2.Metadata:
    """Returns sizes and times of a request that began at `began` (time.monotonic_ns())."""
    return tei_pb2.Metadata(
        compute_chars=num_chars,
        compute_tokens=found.prompt_tokens,
        total_time_ns=time.monotonic_ns() - began,
        tokenization_time_ns=found.times.tokenization,
        queue_time_ns=found.times.queue,
        inference_time_ns=found.times.inference,
    )
