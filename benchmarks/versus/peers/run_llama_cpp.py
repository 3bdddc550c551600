"""llama.cpp in this process: sequences side by side in its batches, each in a part of the cache of its own.

It computes sequences together that have equally many tokens in a call. So prompts come first, the longest
before the others, those of one length together, and then all sequences decode; chunks of prompts among tokens
of others would fall apart into many small computations. Needs LLAMA_CPP_LIB_PATH, where its libraries are.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp as llama
import numpy as np
from harness import Peer, Request, Settings, Trace, serve

BATCH = 2048
"""Tokens of a call."""


@dataclass
class Slot:
    """A sequence at work."""

    request: Request
    trace: Trace
    waiting: list[int] = field(default_factory=list)
    """Tokens that are to be computed."""
    position: int = 0


class LlamaCpp(Peer):
    """The model, and for each run a context of as many sequences, as long as they get."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._quiet = llama.llama_log_callback(lambda *_: None)
        llama.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        self._model = llama.llama_model_load_from_file(settings.model.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {settings.model}")
        self._vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self._batch = llama.llama_batch_init(BATCH, 0, 1)
        self._context: Any = None
        self.versions = {"llama_cpp_python": llama.__version__}

    def prepare(self, requests: Sequence[Request]) -> None:
        """A context of the size that these need."""
        if self._context:
            llama.llama_free(self._context)
        longest = max(len(request.prompt) + request.output for request in requests)
        params = llama.llama_context_default_params()
        params.n_seq_max = len(requests)
        params.n_ctx = len(requests) * -(-longest // 256) * 256
        params.n_batch = BATCH
        params.n_threads = params.n_threads_batch = self._settings.threads
        params.kv_unified = False
        self._context = llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {params.n_ctx} tokens")

    def run(self, requests: Sequence[Request]) -> list[Trace]:
        """Calls until every sequence has its tokens."""
        slots = [Slot(request, Trace(), list(request.prompt)) for request in requests]
        while any(slot.waiting for slot in slots):
            sampling = self._fill(slots)
            code = llama.llama_decode(self._context, self._batch)
            if code:
                raise RuntimeError(f"llama_decode: {code}")
            for place, slot in sampling:
                logits = llama.llama_get_logits_ith(self._context, place)
                token = int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())
                slot.trace.take(1)
                if slot.trace.tokens < slot.request.output:
                    slot.waiting.append(token)
        return [slot.trace for slot in slots]

    def _fill(self, slots: list[Slot]) -> list[tuple[int, Slot]]:
        """Fills the next batch with sequences that have as much to compute as the longest. Returns those
        to sample, with their index in the batch."""
        batch, size, sampling = self._batch, 0, []
        most = max(len(slot.waiting) for slot in slots)
        for number, slot in enumerate(slots):
            taken = min(most, BATCH)
            if len(slot.waiting) < most or size + taken > BATCH:
                continue
            for token in slot.waiting[:taken]:
                batch.token[size], batch.pos[size] = token, slot.position
                batch.n_seq_id[size], batch.seq_id[size][0] = 1, number
                batch.logits[size] = 0
                slot.position += 1
                size += 1
            del slot.waiting[:taken]
            if not slot.waiting:
                batch.logits[size - 1] = 1
                sampling.append((size - 1, slot))
        batch.n_tokens = size
        return sampling


if __name__ == "__main__":
    serve(LlamaCpp)
