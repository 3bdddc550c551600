"""Batches and the training loop of the demo model."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer

from demo_model.calls import calls_document
from demo_model.forms import forms_document
from demo_model.text import Document, document, long_document
from demo_model.thoughts import thoughts_document

IGNORED = -100  # the label of a token that does not count towards the loss


@dataclass(frozen=True)
class Batch:
    """Packed windows: tokens, the tokens to predict after them, and the document each token belongs to."""

    tokens: torch.Tensor
    labels: torch.Tensor
    documents: torch.Tensor

    def attention_mask(self) -> torch.Tensor:
        """True where a token may look: back, within its document. Shape (rows, 1, length, length)."""
        same = self.documents[:, :, None] == self.documents[:, None, :]
        length = self.tokens.shape[1]
        return (same & torch.ones(length, length, dtype=torch.bool).tril())[:, None]


@dataclass(frozen=True)
class Stage:
    """What is trained in one go."""

    steps: int
    peak: float
    """Learning rate."""
    make_document: Callable[[random.Random, bool], Document]
    """Returns a random document; the flag: it is the first of a window of 256 tokens."""
    shapes: tuple[tuple[int, int], ...]
    """Windows and tokens of each, of the steps in turn."""


def first_document(rng: random.Random, opens_long_window: bool) -> Document:
    """Facts and chats."""
    return long_document(rng) if opens_long_window and rng.random() < 0.5 else document(rng)


def later_document(rng: random.Random, opens_long_window: bool) -> Document:
    """Calls of tools, thinking and answers of a schema, among what the first stage had."""
    kind = rng.random()
    if kind < 0.40:
        return first_document(rng, opens_long_window)
    if kind < 0.75:
        return calls_document(rng)
    return thoughts_document(rng) if kind < 0.86 else forms_document(rng)


def first_stage(steps: int, peak: float) -> Stage:
    """Every third step uses windows of 256 tokens (and half as many of them), the others 128: short ones are
    cheaper, long ones keep long outputs in order."""
    return Stage(steps, peak, first_document, ((16, 128), (16, 128), (8, 256)))


def later_stage(steps: int, peak: float) -> Stage:
    """The second and the third stage. Only long windows: a short one would often cut a conversation with
    tools."""
    return Stage(steps, peak, later_document, ((8, 256),))


def make_batch(rng: random.Random, tokenizer: Tokenizer, stage: Stage, step: int) -> Batch:
    """The windows of one step, each filled with fresh documents, the last one cut to fit."""
    rows, length = stage.shapes[step % len(stage.shapes)]
    tokens, labels, documents = [], [], []
    for _ in range(rows):
        row: list[tuple[int, int, int]] = []
        index = 0
        while len(row) < length + 1:
            for segment in stage.make_document(rng, index == 0 and length >= 256):
                for token in tokenizer.encode(segment.text, add_special_tokens=False).ids:
                    row.append((token, token if segment.learn else IGNORED, index))
            index += 1
        tokens.append([entry[0] for entry in row[:length]])
        labels.append([entry[1] for entry in row[1 : length + 1]])
        documents.append([entry[2] for entry in row[:length]])
    return Batch(torch.tensor(tokens), torch.tensor(labels), torch.tensor(documents))


def learning_rate(step: int, steps: int, peak: float) -> float:
    """A linear warm-up of 60 steps, then a cosine down to 2 % of the peak."""
    ramp = min(1.0, (step + 1) / 60)
    return peak * ramp * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def train(
    model: Any,
    tokenizer: Tokenizer,
    rng: random.Random,
    stage: Stage,
    *,
    save_every: int,
    save: Callable[[], None],
) -> float:
    """Train in place for a fixed number of steps; returns the seconds it took."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=stage.peak,
        betas=(0.9, 0.95),
        fused=True,
    )
    began = time.monotonic()
    seen, running = 0, 0.0
    model.train()
    for step in range(stage.steps):
        batch = make_batch(rng, tokenizer, stage, step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, stage.steps, stage.peak)
        hidden = model.model(
            input_ids=batch.tokens, attention_mask=batch.attention_mask(), use_cache=False
        ).last_hidden_state
        wanted = batch.labels != IGNORED
        loss: Any = torch.nn.functional.cross_entropy(model.lm_head(hidden[wanted]), batch.labels[wanted])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += batch.tokens.numel()
        running = loss.item() if step == 0 else 0.95 * running + 0.05 * loss.item()
        if step % 50 == 0 or step == stage.steps - 1:
            elapsed = time.monotonic() - began
            print(f"step {step} loss {running:.4f} {elapsed:.0f} s {seen / elapsed:.0f} tokens/s", flush=True)
        if save_every and (step + 1) % save_every == 0 and step + 1 < stage.steps:
            save()
    model.eval()
    return time.monotonic() - began
