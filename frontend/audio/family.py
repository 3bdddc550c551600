"""What a family of models makes of a sound, and the fields of a checkpoint that say so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from frontend.media.family import NotServed, Settings, Vectors

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

EXTRACTOR = "WhisperFeatureExtractor"
_SLOWEST, _FASTEST = 16000, 48000


@dataclass(frozen=True, slots=True)
class Features:
    """How spectrograms are made: preprocessor_config.json."""

    bins: int
    rate: int
    """Samples a second."""
    hop: int
    """Samples between the middles of two frames."""
    window: int
    """Samples that a frame is made of."""
    length: int
    """Samples of the longest clip that the encoder takes at once."""
    states: int
    """States of it: of two frames each."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What stands for one sound.

    items:  what the encoder takes, each at once: spectrograms [frames, bins] of the clip, or of parts of it.
    pieces: what a prompt has in place of the placeholder.
    """

    items: Sequence["npt.NDArray[np.float32]"]
    pieces: Sequence[str | Vectors]


class AudioFamily(Protocol):
    """The processor of a checkpoint."""

    features: Features
    placeholder: str
    """The token that a prompt has once for each sound."""

    def __init__(self, config: Settings, features: Features) -> None:
        """config: config.json. Raises NotServed."""

    @property
    def most_samples(self) -> int | None:
        """Of a clip; None: as many as a request may have."""

    @property
    def least_samples(self) -> int:
        """Of a clip of which a vector is made."""

    def hear(self, samples: "npt.NDArray[np.float32]") -> Heard:
        """Makes spectrograms of a clip, [n]. Equal lengths have equal pieces."""


def read_features(settings: Settings, config: Settings) -> Features:
    """Reads how spectrograms are made. settings: of preprocessor_config.json. config: config.json. Raises
    NotServed."""
    if settings.text("feature_extractor_type") != EXTRACTOR:
        raise NotServed(f"{settings.name}: feature_extractor_type is not {EXTRACTOR}")
    for name in ("dither", "padding_value"):
        if settings.values.get(name) not in (None, 0, 0.0):
            raise NotServed(f"{settings.name}: {name} is not 0")
    if settings.flag("do_normalize", False):
        raise NotServed(f"{settings.name}: do_normalize is true")
    rate, hop = settings.whole("sampling_rate", 16000), settings.whole("hop_length", 160)
    window, seconds = settings.whole("n_fft", 400), settings.whole("chunk_length", 30)
    bins, audio = settings.whole("feature_size", 80), config.part("audio_config")
    states = audio.whole("max_source_positions", 1500)
    if not _SLOWEST <= rate <= _FASTEST or window % 2 or hop > window or window > rate:
        raise NotServed(f"{settings.name}: sampling_rate, n_fft and hop_length do not fit together")
    if bins != audio.whole("num_mel_bins", 128) or seconds * rate // hop != 2 * states:
        raise NotServed(f"{settings.name} makes other spectrograms than the encoder takes")
    return Features(bins, rate, hop, window, seconds * rate, states)
