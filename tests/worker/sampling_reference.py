"""The sampler's definition for one row, in plain Python and numpy: what docs/sampling.md says.

Logits are float32 until the temperature, probabilities float64 after it.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pagewire.internal.v1 import worker_pb2
from pagewire.v1 import generation_pb2, prompt_pb2
from tests.kernels.references.sampling import philox4x32_reference, uniform53_reference

Logits = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]


@dataclass
class Case:
    """A row: what the sampler is told of it."""

    sampling: dict[str, Any] = field(default_factory=dict)
    prompt: list[int] = field(default_factory=lambda: [0])
    output: list[int] = field(default_factory=list)
    bad_words: list[list[int]] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    min_tokens: int = 0
    sequence_index: int = 0

    def new_row(self, row: int) -> worker_pb2.NewRow:
        """As the core says it. Token ids and blocks are the runner's business."""
        return worker_pb2.NewRow(
            row=row,
            sequence_index=self.sequence_index,
            sampling=generation_pb2.SamplingParams(**self.sampling),
            min_tokens=self.min_tokens,
            stop_token_ids=self.stop_token_ids,
            bad_words=[prompt_pb2.TokenIds(ids=word) for word in self.bad_words],
        )


def reference_probabilities(logits: Logits, case: Case) -> Probabilities:
    """[V] float32 -> [V] float64: the distribution of the row's next token."""
    p = {name: np.float32(value) for name, value in case.sampling.items() if np.isscalar(value)}
    x = processed(logits, case)
    temperature = float(p.get("temperature", np.float32(1)))
    if temperature == 0:
        return np.eye(len(x))[int(np.argmax(x))]
    with np.errstate(over="ignore"):
        weights = np.exp((x.astype(np.float64) - float(x.max())) / temperature)
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    k = int(case.sampling.get("top_k", 0))
    if 0 < k < len(x):
        weights[order[k:]] = 0
    if float(p.get("top_p", 1)) < 1:
        weights = smallest_set(weights, order, float(p["top_p"]))
    weights[weights < float(p.get("min_p", 0)) * weights.max()] = 0
    if float(p.get("typical_p", 1)) < 1:
        probabilities = weights / weights.sum()
        with np.errstate(divide="ignore"):
            surprise = -np.log(probabilities)
        entropy = sum(q * s for q, s in zip(probabilities, surprise, strict=True) if q > 0)
        distance = np.abs(surprise - entropy).astype(np.float32)
        order = sorted(range(len(x)), key=lambda i: (distance[i], i))
        weights = smallest_set(weights, order, float(p["typical_p"]))
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def processed(logits: Logits, case: Case) -> Logits:
    """Penalties, bias and masks, one token at a time."""
    x = logits.copy()
    sampling = case.sampling
    repetition = np.float32(sampling.get("repetition_penalty", 1))
    frequency = np.float32(sampling.get("frequency_penalty", 0))
    presence = np.float32(sampling.get("presence_penalty", 0))
    for token in set(case.prompt + case.output):
        x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
    for token in set(case.output):
        x[token] = x[token] - frequency * np.float32(case.output.count(token)) - presence
    for token, bias in sampling.get("logit_bias", {}).items():
        x[token] += np.float32(bias)
    if allowed := sampling.get("allowed_token_ids"):
        x[[token for token in range(len(x)) if token not in allowed]] = -np.inf
    words = case.bad_words + [[token] for token in sampling.get("bad_token_ids", [])]
    x = without(x, [word[-1] for word in words if ends_with(case.output, word[:-1])])
    if len(case.output) < case.min_tokens:
        x = without(x, case.stop_token_ids)
    return x


def ends_with(output: list[int], tail: list[int]) -> bool:
    """An empty tail is everywhere."""
    return output[len(output) - len(tail) :] == tail and len(output) >= len(tail)


def without(x: Logits, tokens: list[int]) -> Logits:
    """Masks the tokens, unless that leaves none."""
    masked = x.copy()
    masked[tokens] = -np.inf
    return masked if masked.max() > -np.inf else x


def smallest_set(weights: Probabilities, order: list[int], share: float) -> Probabilities:
    """The first ones in the given order that reach the share of the mass; the others become 0."""
    kept = np.zeros_like(weights)
    mass = 0.0
    for token in order:
        if mass and mass >= share * np.cumsum(weights)[-1]:
            break
        kept[token] = weights[token]
        mass += weights[token]
    return kept


def reference_uniform(seed: int, sequence_index: int, position: int) -> float:
    """The random number of a token."""
    words = philox4x32_reference((sequence_index, position, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
    return uniform53_reference(words)


def reference_token(logits: Logits, case: Case) -> int:
    """The row's next token."""
    probabilities = reference_probabilities(logits, case)
    if case.sampling.get("temperature", 1) == 0:
        return int(np.argmax(probabilities))
    seed, position = case.sampling.get("seed", 0), len(case.output)
    cdf = np.cumsum(probabilities)
    u = reference_uniform(seed, case.sequence_index, position)
    return int(np.searchsorted(cdf, u * cdf[-1], side="right"))
