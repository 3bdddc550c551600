"""The families whose sounds are read."""

from typing import TYPE_CHECKING

from frontend.audio.family import AudioFamily, Features, Heard
from frontend.media.family import NotServed, Settings, Vectors

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_PAIR = 2
"""States that become one vector."""


class Qwen2Audio:
    """A clip of at most 30 s is one item, without the silence that is put behind it."""

    placeholder = "<|AUDIO|>"

    def __init__(self, config: Settings, features: Features) -> None:
        self.features = features
        self.most_samples: int | None = features.length
        self.least_samples = 2 * features.hop + 1

    def hear(self, samples: "npt.NDArray[np.float32]") -> Heard:
        """Makes the frames of which the clip's states are computed: the encoder of transformers hides those
        behind it."""
        from frontend.audio.log_mel import log_mel

        features = self.features
        states = (-(-len(samples) // features.hop) - 1) // 2 + 1
        whole = log_mel(samples, features, features.length)
        return Heard([whole[: 2 * states + 1]], [Vectors(0, states // _PAIR)])


class Voxtral:
    """A clip is filled with silence to parts of 30 s, each an item."""

    placeholder = "[AUDIO]"
    most_samples = None
    least_samples = 1

    def __init__(self, config: Settings, features: Features) -> None:
        """Raises NotServed."""
        self.features, audio = features, config.part("audio_config")
        self._group, rest = divmod(audio.whole("intermediate_size", 5120), audio.whole("hidden_size", 1280))
        if rest or features.states % self._group:
            raise NotServed(f"{audio.name}: intermediate_size is no multiple of hidden_size that fits")

    def hear(self, samples: "npt.NDArray[np.float32]") -> Heard:
        """Makes the frames of all parts: their loudest one counts for all."""
        from frontend.audio.log_mel import log_mel

        features = self.features
        parts = -(-len(samples) // features.length)
        whole = log_mel(samples, features, parts * features.length)
        size, count = 2 * features.states, features.states // self._group
        items = [whole[part * size : (part + 1) * size] for part in range(parts)]
        return Heard(items, [Vectors(part, count) for part in range(parts)])


_KNOWN: dict[str, type[AudioFamily]] = {"qwen2_audio": Qwen2Audio, "voxtral": Voxtral}
"""By model_type of config.json."""


def has_audio(config: Settings) -> bool:
    """Returns whether a checkpoint is of a family that hears."""
    return config.text("model_type") in _KNOWN


def family_of(config: Settings, features: Features) -> AudioFamily:
    """Returns the family of a checkpoint that hears. Raises NotServed."""
    return _KNOWN[config.text("model_type")](config, features)
