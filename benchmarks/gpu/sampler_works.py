"""The sampler's operations and a step's inputs for benchmarks/gpu/kernels.py, our way and torch's."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.gpu.works import BLOCK_SIZE, Setting, Work
from kernels.triton.sampling.adjust_logits import Adjustments, adjust_logits
from kernels.triton.sampling.draws import Draws, Filters
from kernels.triton.sampling.filtered_sample import filtered_sample
from kernels.triton.sampling.logprobs import token_logprobs, top_n
from kernels.triton.sampling.sample import argmax, sample
from kernels.triton.sampling.tile_stats import tile_stats
from kernels.triton.sampling.typical_p import typical_p
from kernels.triton.step.prepare_inputs import StepInputs, prepare_inputs

VOCAB = 128256
"""Of Llama 3."""


def sampler_works(setting: Setting) -> Iterator[Callable[[], Work]]:
    """By rows."""
    for rows in (1, 32, 256):
        for what in ("argmax", "temperature", "top-k 50", "top-p 0.9", "logprobs"):
            yield partial(sampling, setting, setting.size(rows), what)
        for make in (penalties, best, typical, inputs):
            yield partial(make, setting, setting.size(rows))


def sampling(setting: Setting, rows: int, what: str) -> Work:
    """Torch's way for top-k and top-p is a sort of the row."""
    vocab_size = setting.size(VOCAB)
    logits = 3 * setting.random(rows, vocab_size, dtype=torch.float32)
    numbers = torch.arange(rows, dtype=torch.int32, device=setting.device)
    heat = torch.ones(rows, device=setting.device)
    draws = Draws(heat, numbers.long(), numbers, numbers)
    filters = Filters(
        torch.full_like(numbers, 50 if what == "top-k 50" else 0),
        torch.full_like(heat, 0.9 if what == "top-p 0.9" else 1.0),
        torch.zeros_like(heat),
    )
    chosen = torch.randint(0, vocab_size, (rows, 8), device=setting.device)

    def filtered() -> torch.Tensor:
        stats = tile_stats(logits, heat, groups=True)
        tokens = sample(logits, draws, stats)
        filtered_sample(logits, draws, filters, stats, tokens)
        return tokens

    def sorting() -> torch.Tensor:
        scores, ids = logits.sort(-1, descending=True)
        p = scores.softmax(-1)
        kept = torch.where(p.cumsum(-1) - p < filters.top_p[:, None], p, 0.0)
        if what == "top-k 50":
            kept[:, 50:] = 0
        return ids.gather(1, (kept / _exponential(kept)).argmax(-1, keepdim=True))[:, 0]

    ours, theirs = {
        "argmax": (lambda: argmax(logits), lambda: logits.argmax(-1)),
        "temperature": (
            lambda: sample(logits, draws),
            lambda: (logits.softmax(-1) / _exponential(logits)).argmax(-1),
        ),
        "top-k 50": (filtered, sorting),
        "top-p 0.9": (filtered, sorting),
        "logprobs": (
            lambda: token_logprobs(logits, chosen)[0],
            lambda: logits.log_softmax(-1).gather(1, chosen),
        ),
    }[what]
    compare = what in ("argmax", "logprobs")
    return Work(f"{what} {rows} x {vocab_size}", ours, theirs, num_bytes=logits.nbytes, compare=compare)


def _exponential(like: torch.Tensor) -> torch.Tensor:
    """Noise that makes a draw of an argmax: torch.multinomial waits for the device."""
    return torch.empty_like(like).exponential_()


def penalties(setting: Setting, rows: int) -> Work:
    """All three, of every row, in place; torch is given the prompt's tokens as booleans."""
    vocab_size, device = setting.size(VOCAB), setting.device
    logits = setting.random(rows, vocab_size, dtype=torch.float32)
    strengths = torch.tensor([1.1, 0.1, 0.2], device=device).repeat(rows, 1)
    counts = torch.randint(0, 3, (rows, vocab_size), dtype=torch.int32, device=device)
    words = torch.randint(0, 1 << 30, (rows, -(-vocab_size // 32)), dtype=torch.int32, device=device)
    prompt = (words[:, :, None] >> torch.arange(32, device=device) & 1).flatten(1)[:, :vocab_size].bool()
    nothing = torch.zeros(rows, 1, dtype=torch.int32, device=device)
    state = Adjustments(strengths, counts, words, nothing, nothing.float(), nothing[:, 0].contiguous())
    numbers = torch.arange(rows, dtype=torch.int32, device=device)

    def torch_way() -> torch.Tensor:
        repetition, frequency, presence = strengths[:, :, None].unbind(1)
        seen = prompt | (counts > 0)
        x = torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
        return x - frequency * counts - presence * (counts > 0)

    return Work(
        f"penalties {rows} x {vocab_size}",
        lambda: adjust_logits(logits, numbers, numbers, state),
        torch_way,
        num_bytes=3 * logits.nbytes + words.nbytes,
        compare=False,
        compiled=True,
    )


def best(setting: Setting, rows: int) -> Work:
    """The top 20 tokens, for log-probabilities."""
    logits = setting.random(rows, setting.size(VOCAB), dtype=torch.float32)
    return Work(
        f"top_n 20 of {rows} x {logits.shape[1]}",
        lambda: top_n(logits, 20),
        lambda: logits.topk(20).indices,
        num_bytes=logits.nbytes,
    )


def typical(setting: Setting, rows: int) -> Work:
    """Both out of place: ours takes a copy with it."""
    logits = 3 * setting.random(rows, setting.size(VOCAB), dtype=torch.float32)
    heat = torch.ones(rows, device=setting.device)
    filters = Filters(
        torch.zeros_like(heat, dtype=torch.int32), torch.ones_like(heat), torch.zeros_like(heat)
    )
    share, scratch = torch.full_like(heat, 0.9), torch.empty_like(logits)

    def ours() -> torch.Tensor:
        typical_p(scratch.copy_(logits), heat, filters, share)
        return scratch.exp()

    def sorting() -> torch.Tensor:
        scores = logits.log_softmax(-1)
        p = scores.exp()
        order = (scores - (p * scores).sum(-1, keepdim=True)).abs().argsort(-1)
        mass = p.gather(1, order).cumsum(-1)
        stays = torch.zeros_like(p, dtype=torch.bool)
        stays.scatter_(1, order, mass - p.gather(1, order) < share[:, None])
        return torch.where(stays, logits, -torch.inf).exp()

    name = f"typical_p 0.9 of {rows} x {logits.shape[1]}"
    return Work(name, ours, sorting, num_bytes=2 * logits.nbytes, compare=False)


def inputs(setting: Setting, rows: int) -> Work:
    """Of a step in which all rows decode: one launch, whose bytes are nothing."""
    device, blocks_per_row = setting.device, setting.size(64)
    tokens = torch.randint(0, 1000, (rows, blocks_per_row * BLOCK_SIZE), dtype=torch.int32, device=device)
    blocks = torch.randperm(rows * blocks_per_row, device=device).view(rows, -1).to(torch.int32)
    numbers = torch.arange(rows, dtype=torch.int32, device=device)
    starts = torch.randint(0, tokens.shape[1] - 1, (rows,), dtype=torch.int32, device=device)
    ones, count = torch.ones_like(numbers), torch.tensor([rows], dtype=torch.int32, device=device)
    longs = (torch.empty(rows, dtype=torch.int64, device=device) for _ in range(4))
    out = StepInputs(*longs, torch.empty_like(torch.cat((ones, ones[:1]))), ones.clone(), blocks.clone())

    def torch_way() -> tuple[torch.Tensor, ...]:
        block = blocks[numbers, starts // BLOCK_SIZE].long()
        slots = block * BLOCK_SIZE + starts % BLOCK_SIZE
        return tokens[numbers, starts].long(), starts.long(), slots, starts + 1, blocks[numbers]

    return Work(
        f"prepare_inputs {rows} rows",
        lambda: prepare_inputs(numbers, starts, ones, count, tokens, blocks, ones, BLOCK_SIZE, out),
        torch_way,
        num_bytes=8 * blocks.numel() + 32 * rows,
        compare=False,
        compiled=True,
    )
