"""Tokenizer, batches and the training loop of the demo model."""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from demo_model.text import BOS, SPECIAL_TOKENS, document, long_document
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers


def train_tokenizer(rng: random.Random, vocab_size: int, n_documents: int = 12000) -> Tokenizer:
    """A byte-level BPE tokenizer with single digits, which puts BOS before what it encodes.

    Merges are learned from the ASCII part only. Each emoji and each kana is thus several tokens, and
    a client that streams the model's output has to put characters together from pieces, as with large models.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()

    def texts() -> Iterator[str]:
        for _ in range(n_documents):
            for segment in document(rng):
                text = segment.text
                for token in SPECIAL_TOKENS:
                    text = text.replace(token, "\n")
                yield text.encode("ascii", "ignore").decode("ascii")

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


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


def make_batch(rng: random.Random, tokenizer: Tokenizer, rows: int, length: int) -> Batch:
    """``rows`` windows of ``length`` tokens, each filled with fresh documents, the last one cut to fit."""
    tokens, labels, documents = [], [], []
    for _ in range(rows):
        row: list[tuple[int, int, int]] = []
        index = 0
        while len(row) < length + 1:
            first_of_long = index == 0 and length >= 256 and rng.random() < 0.5
            for segment in long_document(rng) if first_of_long else document(rng):
                for token in tokenizer.encode(segment.text, add_special_tokens=False).ids:
                    row.append((token, token if segment.learn else IGNORED, index))
            index += 1
        tokens.append([entry[0] for entry in row[:length]])
        labels.append([entry[1] for entry in row[1 : length + 1]])
        documents.append([entry[2] for entry in row[:length]])
    return Batch(torch.tensor(tokens), torch.tensor(labels), torch.tensor(documents))


def learning_rate(step: int, steps: int, peak: float, warmup: int = 60) -> float:
    """A short linear warm-up, then a cosine down to 2 % of the peak."""
    ramp = min(1.0, (step + 1) / warmup)
    return peak * ramp * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def train(
    model: Any, tokenizer: Tokenizer, rng: random.Random, args: argparse.Namespace, save: Callable[[], None]
) -> float:
    """Train in place for a fixed number of steps; returns the seconds it took.

    Every third step uses windows of 256 tokens (and half as many of them), the others 128: short ones are
    cheaper, long ones keep long outputs in order.
    """
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.95),
        fused=True,
    )
    began = time.monotonic()
    seen, running = 0, 0.0
    model.train()
    for step in range(args.steps):
        rows, length = (8, 256) if step % 3 == 2 else (16, 128)
        batch = make_batch(rng, tokenizer, rows, length)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
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
        if step % 50 == 0 or step == args.steps - 1:
            elapsed = time.monotonic() - began
            print(f"step {step} loss {running:.4f} {elapsed:.0f} s {seen / elapsed:.0f} tokens/s", flush=True)
        if args.save_every and (step + 1) % args.save_every == 0 and step + 1 < args.steps:
            save()
    model.eval()
    return time.monotonic() - began
