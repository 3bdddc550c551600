"""The tokenizer of the demo model."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from demo_model.template import BOS, LATER_TOKENS, SPECIAL_TOKENS
from demo_model.text import document


def train_tokenizer(rng: random.Random, vocab_size: int) -> Tokenizer:
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
        for _ in range(12_000):
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


def with_later_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with the special tokens of the second stage in place of its last merges.

    All other tokens keep their ids, so that a model goes on from what it has learned.
    """
    made = json.loads(tokenizer.to_str())
    vocabulary = made["model"]["vocab"]
    for token, added in zip(
        sorted(vocabulary, key=vocabulary.__getitem__)[-len(LATER_TOKENS) :], LATER_TOKENS, strict=True
    ):
        made["added_tokens"].append({**made["added_tokens"][0], "id": vocabulary[token], "content": added})
        vocabulary[added] = vocabulary.pop(token)
    del made["model"]["merges"][-len(LATER_TOKENS) :]
    return Tokenizer.from_str(json.dumps(made))
