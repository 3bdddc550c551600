"""The sampling parameters of `generate` and `chat`."""

from pagewire.client.params import SamplingParams
from pagewire.command_config import SamplingConfig


def sampling_params(config: SamplingConfig, n: int | None = None) -> SamplingParams:
    """Returns the parameters given as flags; the others keep the model's defaults."""
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
