"""vLLM, without a server: requests are added to its engine, which is stepped until all are done."""

import os
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
import vllm
from harness import Peer, Request, Settings, Trace, serve
from vllm.sampling_params import RequestOutputKind


class VLLM(Peer):
    """Compiled, with its prefix cache, in bfloat16 or as PEER_DTYPE says."""

    def __init__(self, settings: Settings) -> None:
        self._engine: Any = vllm.LLM(
            model=settings.model,
            dtype=os.environ.get("PEER_DTYPE", "bfloat16"),
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_model_len,
            enable_prefix_caching=True,
            disable_log_stats=True,
        ).llm_engine
        self._numbers = count()
        self.versions = {"vllm": vllm.__version__, "torch": torch.__version__}

    def run(self, requests: Sequence[Request]) -> list[Trace]:
        """Deltas, as they leave a step."""
        traces = {}
        for request in requests:
            name = str(next(self._numbers))
            params = vllm.SamplingParams(
                temperature=0,
                max_tokens=request.output,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            traces[name] = Trace()
            self._engine.add_request(name, {"prompt_token_ids": request.prompt}, params)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                traces[output.request_id].take(len(output.outputs[0].token_ids))
        return list(traces.values())


if __name__ == "__main__":
    serve(VLLM)
