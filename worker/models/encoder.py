"""Encoders: their tokens see those before and behind them, and no token is sampled."""

import torch

from kernels.api import InputBatch
from worker.config.encoder import EncoderConfig
from worker.layers.embedding import PositionEmbedding, TokenTypes
from worker.models.transformer import Transformer, norm
from worker.parallel import Placement


class Encoder(Transformer):
    """A Transformer whose embedding has positions and types of tokens, and a norm. Its head, which is not
    used, is the embedding."""

    has_head = False

    def __init__(self, config: EncoderConfig, place: Placement) -> None:
        super().__init__(config, place)
        width, self.positions, self.token_types = config.hidden_size, None, None
        if config.learned_positions:
            offset = config.position_offset
            self.positions = PositionEmbedding(config.max_position, width, place, offset)
        if config.num_token_types:
            self.token_types = TokenTypes(config.num_token_types, width, place)
        self.embedding_norm = norm(config, place)

    def embed(self, batch: InputBatch) -> torch.Tensor:
        if self.positions is None:
            return self.embedding_norm(super().embed(batch))
        return self.embedding_norm(self.ops.per_step(self._embed, batch, self.positions.width))

    def _embed(self, batch: InputBatch) -> torch.Tensor:
        assert self.positions is not None
        x = self.embedding(batch)
        if self.token_types is not None:
            x = x + self.token_types(batch)
        return x + self.positions(batch)
