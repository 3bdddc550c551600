"""Configuration of OPT, which worker.models.opt builds. Needs no torch."""

from dataclasses import dataclass

from worker.config.decoder import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class OPTConfig(DecoderConfig):
    """A decoder whose embedding and head may be narrower than its hidden states."""

    embedding_size: int

    @property
    def state_size(self) -> int:
        return self.embedding_size

    @property
    def input_embedding_size(self) -> int:
        return self.embedding_size
