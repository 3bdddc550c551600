"""Configuration of Gemma 4's text decoder. Needs no torch."""

from dataclasses import dataclass

from worker.config.decoder import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Gemma4Config(DecoderConfig):
    """A decoder whose layers with full attention have heads of their own sizes, and whose last layers read
    keys and values of earlier ones. `head_dim` and `num_kv_heads` are those of layers with windows. Experts
    come beside the feed-forward part, not in its place."""

    full_head_dim: int  # of layers that see all tokens
    full_kv_heads: int
    keys_are_values: bool  # in these layers the projection of keys makes the values too
    num_shared: int  # last layers, that read keys and values of earlier ones
    wide_shared: bool  # feed-forward parts of these are twice as wide
    layer_width: int  # P: of the vector that each layer has for a token; 0: none
    layer_vocab: int  # rows of the table of these vectors
    pad_token: int  # whose row of that table stands for what is no token

    def kv_sizes(self, layer: int) -> tuple[int, int]:
        """Returns the KV heads and the head size of a layer."""
        if self.windows[layer] is None:
            return self.full_kv_heads, self.full_head_dim
        return self.num_kv_heads, self.head_dim

    def source_of(self, layer: int) -> int:
        """Returns the layer whose keys and values a layer reads: itself, or the last one of its kind that has
        some."""
        own = self.num_layers - self.num_shared
        alike = [each for each in range(own) if self.windows[each] == self.windows[layer]]
        return layer if layer < own else alike[-1]

    def inner_size(self, layer: int) -> int:
        """Returns the width of a layer's feed-forward part."""
        wide = self.wide_shared and layer >= self.num_layers - self.num_shared
        return self.intermediate_size * (2 if wide else 1)

    @property
    def input_embedding_size(self) -> int:
        return 0  # layers look up vectors by token, too

    @property
    def kv_values(self) -> int:
        """Returns the average over the layers, rounded up."""
        own = range(self.num_layers - self.num_shared)
        return -(-2 * sum(heads * size for heads, size in map(self.kv_sizes, own)) // self.num_layers)

    @property
    def pair_values(self) -> int:
        """Returns the average over the layers, rounded up."""
        return -(-2 * sum(self.kv_sizes(layer)[1] for layer in range(self.num_layers)) // self.num_layers)
