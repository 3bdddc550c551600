"""OpenVINO GenAI: its continuous batching pipeline, stepped until all requests are done.

The model is what optimum-intel exported, with weights of 16 or 8 bits; a step computes in bfloat16, or, with
8 bits, as OpenVINO thinks best.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from harness import Peer, Request, Settings, Trace, serve


class OpenVINO(Peer):
    """With its prefix cache."""

    def __init__(self, settings: Settings) -> None:
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size = settings.cache_gb
        scheduling.max_num_seqs = settings.max_num_seqs
        scheduling.max_num_batched_tokens = settings.max_model_len
        scheduling.dynamic_split_fuse = True
        scheduling.enable_prefix_caching = True
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": settings.threads, "NUM_STREAMS": 1}
        if settings.weights == "bf16":
            properties["INFERENCE_PRECISION_HINT"] = "bf16"
        self._pipeline = genai.ContinuousBatchingPipeline(settings.model, scheduling, "CPU", properties)
        self._numbers = count()
        self.versions = {"openvino": openvino.__version__, "openvino_genai": genai.__version__}

    def run(self, requests: Sequence[Request]) -> list[Trace]:
        """After each step, what can be read of every request."""
        running = [(Trace(), self._add(request)) for request in requests]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for trace, handle in running:
                if handle.can_read():
                    trace.take(sum(len(output.generated_ids) for output in handle.read().values()))
        return [trace for trace, _ in running]

    def _add(self, request: Request) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = request.output
        config.ignore_eos = True
        config.do_sample = False
        prompt = openvino.Tensor(np.array([request.prompt], np.int64))
        return self._pipeline.add_request(next(self._numbers), prompt, config)


if __name__ == "__main__":
    serve(OpenVINO)
