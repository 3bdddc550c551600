"""Configuration of an encoder of sounds (worker.audio). Needs no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AudioConfig:
    """An encoder of log-mel spectrograms: Whisper's, and what makes vectors of a decoder of its states.

    Two convolutions make a state of two frames; the states of a clip see one another. Then neighbours become
    one vector, by linear(norm(mean)) or linear(f(linear(states side by side))).
    """

    num_bins: int  # of a frame
    max_states: int  # of the longest clip
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    activation: str
    group: int  # states that become a vector
    averages: bool = False  # of these the mean counts; else all of them side by side
    projector_activation: str | None = None  # None: the projector is one linear layer
    projector_bias: bool = False
    norm_eps: float = 1e-5

    has_grid_positions = False
    """Whether vectors have positions of several axes in the decoder (M-RoPE)."""
    vectors_per_position = 1
    """Of a sound: that in place of a token."""

    @property
    def states_per_vector(self) -> int:
        """States of the encoder that become a vector."""
        return self.group

    @property
    def head_dim(self) -> int:
        """D."""
        return self.hidden_size // self.num_heads

    @property
    def max_frames(self) -> int:
        """Of the longest clip."""
        return 2 * self.max_states

    @property
    def max_vectors(self) -> int:
        """Of the longest clip."""
        return self.max_states // self.group

    def num_vectors(self, frames: int, bins: int) -> int:
        """Returns how many vectors a spectrogram of so many frames becomes; 0: the encoder does not take it.

        A clip of n frames has ceil(n / 2) states, and comes with all frames that these are made of: two of
        each and the one behind them, which the longest clip has not.
        """
        is_longest = frames == self.max_frames
        if bins != self.num_bins or frames > self.max_frames or is_longest == bool(frames % 2):
            return 0
        return frames // 2 // self.group
