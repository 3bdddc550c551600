"""Configuration of an encoder of images (worker.vision). Needs no torch."""

from dataclasses import dataclass
from math import isqrt


@dataclass(frozen=True, kw_only=True)
class PixelsConfig:
    """What a processor does to pixels of 8 bits: (pixel * scale - mean) / std, channel by channel. rounds:
    after each operation to bfloat16."""

    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rounds: bool = False


@dataclass(frozen=True, kw_only=True)
class TowerConfig:
    """A transformer over patches of an image, which see one another."""

    kind: str  # model_type of vision_config
    hidden_size: int
    num_layers: int  # blocks of the checkpoint; 0: the tower is what they would read
    num_heads: int
    intermediate_size: int
    activation: str
    norm_eps: float
    patch_size: int  # pixels of a side
    image_size: int  # pixels of a side of every image
    any_size: bool = False  # images are of any size that is a multiple of the patch size
    most_pixels: int = 0  # any size: of an image as it is prepared; 0: the square of image_size
    frames: int = 0  # a patch is so many equal frames, by a convolution in three dimensions; 0: in two
    patch_bias: bool = False
    flat_patches: bool = False  # checkpoints have what multiplies patches as a matrix
    class_token: bool = False  # a learned vector stands before the patches
    class_last: bool = False  # it stands behind them
    learned_positions: bool = False  # a vector for each patch, and for the class token
    buckets_positions: bool = False  # a patch's row of that table is computed from fractions of a side
    interpolates_positions: bool = False  # that table is stretched over an image's rows and columns
    position_rows: int = 0  # rows of two tables, of a patch's column and of its row, in place of it; 0: none
    paired_positions: bool = False  # those two are stored as one, row beside row
    patch_norms: bool = False  # patches are normed before they are multiplied, and behind that
    rotary_theta: float | None = None  # rows and columns rotate queries and keys; None: they do not
    equal_frequencies: bool = False  # columns turn by those of rows; else by those between them
    rotates_pairs: bool = False  # two values side by side turn, first by columns; both are numbered from 1
    window: int = 0  # rows and columns of patches that see one another; 0: all of the image do
    full_layers: tuple[int, ...] = ()  # numbers of blocks without windows, 0: the first one
    rms_norms: bool = False  # root mean squares in place of layer norms, but for the last norm
    first_norm: bool = False  # before the first block
    last_norm: bool = False  # behind the last one
    qkv_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    gated: bool = False  # down(f(gate(x)) * up(x)), else down(f(up(x)))
    head_norms: bool = False  # of all queries together, and of all keys
    around_norms: bool = False  # as Gemma 4's decoder: norms around parts; each head's values are normed, too
    clipped: bool = False  # of these parts, what products read and make is clipped, by bounds of each
    channel_scales: bool = False  # what a part of a block adds is multiplied by a learned vector
    stored_as_batch: bool = False  # checkpoints have the class token and the positions as a batch of one
    channels_last: bool = False  # a matrix reads patches, of which a pixel's channels stand side by side

    @property
    def patches_per_side(self) -> int:
        """Of an image; of the largest one that was trained with, where images are of any size."""
        return self.image_size // self.patch_size

    @property
    def max_patches(self) -> int:
        """Of the largest image."""
        most = self.most_pixels // self.patch_size**2
        return most if self.any_size and most else self.patches_per_side**2

    @property
    def head_dim(self) -> int:
        """D."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, kw_only=True)
class ProjectorConfig:
    """What makes vectors of a decoder of those of a tower: squares of patches become one vector, then

    linear(norm(x)), or linear(f(linear(norm(x)))), or linear(f(linear(f(linear(x)))))

    Where squares are averaged, a root-mean-square norm follows, with weights stored as their distance from 1,
    or, where they are pooled, without weights.
    """

    merge: int = 1  # patches of a side of a square
    merged_by_channel: bool = False  # in a square the values of a channel stand side by side
    tower_norm_eps: float | None = None  # of a norm before squares are made; None: none
    tower_layer_norm: bool = False  # it is a layer norm; else root mean squares
    merging_linear: bool = False  # a square becomes a vector of the tower's width first
    layer_norm_eps: float | None = None  # of a layer norm of squares; None: none
    average_eps: float | None = None  # of the norm of averages; None: a square is all values of its patches
    pooled_eps: float | None = None  # averages times a factor are normed; None: not
    pooled_factor: float = 1.0
    standardized: bool = False  # before that norm they are (x - bias) * scale, channel by channel
    activation: str | None = None  # None: one linear layer
    inner_square: bool = False  # the first of two linear layers keeps the width of a square
    inner_size: int = 0  # width of what the first two of three linear layers make; 0: there are fewer
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """An encoder of images."""

    pixels: PixelsConfig
    tower: TowerConfig
    projector: ProjectorConfig
    features: tuple[int, ...]  # outputs that the projector reads side by side: behind so many blocks
    drops_first: bool = False  # the projector does not read the first vector of the tower
    drops_last: bool = False  # nor the last one
    deeper: tuple[int, ...] = ()  # the same, of vectors that are added behind the decoder's first layers
    has_grid_positions: bool = False  # vectors have positions by row and column in the decoder (M-RoPE)

    @property
    def num_layers(self) -> int:
        """Blocks of the tower whose output something reads: those behind them are not loaded."""
        return max((*self.features, *self.deeper))

    @property
    def vectors_per_position(self) -> int:
        """Of an image: that in place of a token, and those that are added."""
        return 1 + len(self.deeper)

    @property
    def states_per_vector(self) -> int:
        """States of the tower that become a vector."""
        return self.projector.merge**2

    @property
    def max_vectors(self) -> int:
        """The most vectors of an image, where images have one size; else those of the largest one that was
        trained with."""
        most = self.tower.most_pixels // self.pixels_per_vector**2
        return most or self._num_vectors(*self.largest_size)

    @property
    def largest_size(self) -> tuple[int, int]:
        """Height and width of an image of about as many vectors."""
        side, cell = self.tower.image_size, self.pixels_per_vector
        if not self.tower.any_size:
            return side, side
        if not self.tower.most_pixels:
            return side - side % cell, side - side % cell
        most = self.tower.most_pixels // cell**2
        return isqrt(most) * cell, most // isqrt(most) * cell

    @property
    def pixels_per_vector(self) -> int:
        """On each side of the square that becomes a vector."""
        return self.tower.patch_size * self.projector.merge

    def num_vectors(self, height: int, width: int) -> int:
        """Returns how many vectors an image of so many pixels becomes; 0: the encoder does not take it."""
        tower, side = self.tower, self.pixels_per_vector
        if tower.any_size:
            beyond = 0 < tower.position_rows < max(height, width) // tower.patch_size
            return 0 if beyond or height % side or width % side else self._num_vectors(height, width)
        fits = (height, width) == (tower.image_size, tower.image_size)
        return self._num_vectors(height, width) if fits else 0

    def _num_vectors(self, height: int, width: int) -> int:
        size = self.tower.patch_size
        states = (height // size) * (width // size) + self.tower.class_token
        states -= self.drops_first + self.drops_last
        return states // self.projector.merge**2
