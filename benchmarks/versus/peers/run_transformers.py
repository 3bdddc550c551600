"""transformers: generate() on padded batches, in the order of the requests, each until its longest ends.

A single request is streamed; of a batch only the end is known.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from harness import Request, Settings, Trace, serve
from transformers.generation.streamers import BaseStreamer

BATCH = 32


class Arrivals(BaseStreamer):
    """Tells a trace of each token; the prompt comes first."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._seen_prompt = trace, False

    def put(self, value: Any) -> None:
        """See BaseStreamer."""
        self._trace.take(int(self._seen_prompt))
        self._seen_prompt = True

    def end(self) -> None:
        """See BaseStreamer."""


class Transformers:
    """In bfloat16, or as PEER_DTYPE says, with torch's own attention."""

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(settings.threads)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            settings.model,
            dtype=getattr(torch, os.environ.get("PEER_DTYPE", "bfloat16")),
            attn_implementation="sdpa",
        ).eval()
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}

    def prepare(self, requests: Sequence[Request]) -> None:
        """Nothing."""

    def run(self, requests: Sequence[Request]) -> list[Trace]:
        """One batch after the other."""
        traces = [Trace() for _ in requests]
        for first in range(0, len(requests), BATCH):
            self._run_batch(requests[first : first + BATCH], traces[first : first + BATCH])
        return traces

    @torch.inference_mode()
    def _run_batch(self, requests: Sequence[Request], traces: list[Trace]) -> None:
        longest = max(len(request.prompt) for request in requests)
        ids = torch.zeros((len(requests), longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, longest - len(request.prompt) :] = 1
        steps = max(request.output for request in requests)
        options = {"streamer": Arrivals(traces[0])} if len(requests) == 1 else {}
        self._model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=steps,
            min_new_tokens=steps,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        if not options:
            for request, trace in zip(requests, traces, strict=True):
                trace.take(request.output)


if __name__ == "__main__":
    serve(Transformers)
