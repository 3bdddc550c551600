"""Encoders: their tokens see those before and behind them, and no token is sampled."""

import torch

from kernels.api import InputBatch
from worker.config.encoder import EncoderConfig
from worker.layers.embedding import TokenTypes
from worker.models.transformer import Transformer, norm
from worker.parallel import Placement


class Encoder(Transformer):
    """A Transformer whose embedding has types of tokens, and a norm. Its head, which is not used, is the
    embedding."""

    has_head = False

    def __init__(self, config: EncoderConfig, place: Placement) -> None:
        super().__init__(config, place)
        self.token_types = None
        if config.num_token_types:
            self.token_types = TokenTypes(config.num_token_types, config.hidden_size, place)
        self.has_token_types = config.num_token_types > 1
        self.embedding_norm = norm(config, place)

    def embed(self, batch: InputBatch) -> torch.Tensor:
        return self.embedding_norm(super().embed(batch))

    def token_vectors(self, batch: InputBatch) -> torch.Tensor:
        x = super().token_vectors(batch)
        return x if self.token_types is None else x + self.token_types(batch)
