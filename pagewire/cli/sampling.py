"""Sampling flags of `generate` and `chat`."""

from pagewire.client.params import SamplingParams
from pagewire.config import SamplingConfig


def sampling_params(config: SamplingConfig, n: int | None = None) -> SamplingParams:
    """What the flags say; what they leave out stays the model's default."""
    return SamplingParams(
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty,
        seed=config.seed,
        stop=config.stop,
        n=n,
    )
