"""Configuration of an encoder, which worker.models.encoder builds. Needs no torch."""

from dataclasses import dataclass

from worker.config.decoder import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(DecoderConfig):
    """An encoder: embeddings with a norm behind them, then blocks as those of decoders."""

    bidirectional: bool = True
    num_token_types: int = 0  # of which each token has one, with a vector in the embedding

    @property
    def input_embedding_size(self) -> int:
        return 0
