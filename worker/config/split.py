"""Which sizes of a decoder are divided among tensor-parallel ranks, and which layers make a stage. Needs no
torch."""

from collections.abc import Iterator

from worker.config.decoder import DecoderConfig
from worker.config.gemma4 import Gemma4Config


def stage_layers(config: DecoderConfig) -> list[int]:
    """Returns the layers of which each stage has at least one: those that keep something in the KV cache,
    where others keep a state; where the last layers read keys and values of earlier ones, up to the first of
    these, so that all of them are in one stage."""
    layers = range(config.num_layers)
    if isinstance(config, Gemma4Config):
        first = config.num_layers - config.num_shared
        return list(layers[: 1 + min(map(config.source_of, layers[first:]), default=config.num_layers - 1)])
    beside = config.mambas_attend is not None
    states = config.deltas or (() if beside else config.mambas)
    return [layer for layer in layers if not states or states[layer] is None]


def divided_sizes(config: DecoderConfig) -> Iterator[tuple[int, str, bool]]:
    """Yields how many there are of what must be divided evenly, and whether several ranks may have the same
    one instead."""
    layers = range(config.num_layers)
    yield config.num_heads, "attention heads", False
    if config.latent is None:
        of_layers = (
            (config.kv_sizes(layer)[0] for layer in layers)
            if isinstance(config, Gemma4Config)
            else (config.num_kv_heads,)
        )
        for count in dict.fromkeys(of_layers):
            yield count, "KV heads", True
    inner = "inputs of the last matrix of a feed-forward part"
    if isinstance(config, Gemma4Config) or not (config.experts and all(config.experts)):
        yield config.intermediate_size, inner, False
    for experts in dict.fromkeys(config.experts):
        if experts is not None and experts.shared_size:
            yield experts.shared_size, inner, False
    for delta in dict.fromkeys(config.deltas):
        if delta is not None:
            yield delta.value_heads, "value heads of a delta net", False
            yield delta.key_heads, "key heads of a delta net", True
    for mamba in dict.fromkeys(config.mambas):
        if mamba is not None:
            yield mamba.heads, "heads of a Mamba-2 layer", False
            yield mamba.groups, "groups of a Mamba-2 layer", True
