"""What benchmarks.gpu.compile compiles of the sampler's state and of its rarer parameters."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.launches import Launch
from benchmarks.gpu.shapes import FP32, empty


def sampler_state_launches() -> Iterator[tuple[str, Launch]]:
    """By vocabulary, as benchmarks.gpu.compile has the others."""
    from kernels.ops.sampling.token_masks import Prohibitions
    from kernels.triton.sampling.filtered_sample import Filters
    from kernels.triton.sampling.forbid_tokens import forbid_tokens
    from kernels.triton.sampling.top_n import MOST, top_n
    from kernels.triton.sampling.typical_p import typical_p
    from kernels.triton.step.count_tokens import count_tokens
    from kernels.triton.step.record_tokens import History, record_tokens

    rows, slots = 32, 8
    numbers, shares = empty(rows), empty(rows, dtype=FP32)
    tokens = empty(rows, dtype=torch.int64)
    for vocab_size in (32000, 128256, 151936):
        logits, counts = empty(rows, vocab_size, dtype=FP32), empty(slots, vocab_size)
        history = History(empty(512), empty(512), empty(512), counts, empty(slots, 4096))
        yield f"record_tokens {vocab_size}", partial(record_tokens, tokens, tokens, history)
        words = empty(slots, -(-vocab_size // 32))
        yield f"count_tokens {vocab_size}", partial(count_tokens, empty(1024), 1000, 3, counts, words)
        state = Prohibitions(
            empty(slots, 40), empty(slots, 40, 3), history.outputs, empty(slots, 5), empty(slots, 5)
        )
        yield f"forbid_tokens {vocab_size}", partial(forbid_tokens, logits, numbers, numbers, state)
        filters = Filters(numbers, shares, shares)
        yield f"typical_p {vocab_size}", partial(typical_p, logits, shares, filters, shares)
        yield f"top_n {MOST} {vocab_size}", partial(top_n, logits, MOST)
