"""Reads FLAC files, by libsndfile. Files come from clients: what a header states is judged before anything is
decoded, and what is decoded is compared with it."""

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from frontend.audio.problem import AudioProblem
from frontend.audio.wav import DAMAGED, mean_of_channels

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MISSING = "is FLAC, which is not served: pip install 'pagewire[audio]' brings what decodes it"
_BLOCK = 1 << 16
"""Samples of each channel that are decoded at once."""
_HEAD = 42
"""Bytes up to the end of STREAMINFO, which is first in each file."""


@dataclass(frozen=True, slots=True)
class FlacFile:
    """A file whose header was read. num_samples: of each channel."""

    rate: int
    channels: int
    num_samples: int
    _data: bytes

    def decode(self) -> "npt.NDArray[np.float32]":
        """Returns the mean of all channels, [num_samples]. Raises AudioProblem."""
        import numpy as np
        import soundfile

        found, count = np.empty(self.num_samples, np.float32), 0
        try:
            with soundfile.SoundFile(BytesIO(self._data)) as file:
                if (file.format, file.samplerate, file.channels) != ("FLAC", self.rate, self.channels):
                    raise AudioProblem(DAMAGED)
                while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
                    if count + len(block) > self.num_samples:
                        raise AudioProblem(DAMAGED)
                    found[count : count + len(block)] = mean_of_channels(block)
                    count += len(block)
        except (soundfile.SoundFileError, EOFError) as error:
            raise AudioProblem(DAMAGED) from error
        if count != self.num_samples:
            raise AudioProblem(DAMAGED)
        return found


def read_flac(data: bytes) -> FlacFile:
    """Reads the header of a file that begins as FLAC does. Raises AudioProblem."""
    try:
        import soundfile  # noqa: F401
    except (ImportError, OSError) as error:  # the latter: libsndfile is missing
        raise AudioProblem(MISSING) from error
    if len(data) < _HEAD or data[4] & 0x7F or int.from_bytes(data[5:8]) != _HEAD - 8:
        raise AudioProblem(DAMAGED)
    packed = int.from_bytes(data[18:26])  # 20 bits, 3, 5 and 36
    rate, channels, num_samples = packed >> 44, (packed >> 41 & 7) + 1, packed & ((1 << 36) - 1)
    if not num_samples:
        raise AudioProblem("does not say how many samples it has")
    return FlacFile(rate, channels, num_samples, data)
