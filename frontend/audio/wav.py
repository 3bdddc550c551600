"""Reads WAV files: samples of 8 to 32 bits, or floats. Files come from clients.

    RIFF <size> WAVE
    fmt  <size> tag, channels, samples a second, bytes a second, bytes of a sample of all channels, bits
    data <size> samples, the channels side by side

Other chunks are skipped. What a header states is compared with the file before anything is decoded.
"""

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frontend.audio.problem import AudioProblem

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_SUBFORMAT = bytes.fromhex("000000001000800000aa00389b71")
"""Ends the 16 bytes that stand for a tag in the extensible form."""
_BITS = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
_STREAMED = 0xFFFFFFFF
"""As the size of the data: up to the end of the file, whose writer did not know it."""
_MOST_CHUNKS = 1024
CHANNELS = 8
"""That a sound may have."""
DAMAGED = "cannot be decoded: it is damaged, or not complete"


@dataclass(frozen=True, slots=True)
class WavFile:
    """A file whose header was read. num_samples: of each channel."""

    rate: int
    channels: int
    num_samples: int
    _is_float: bool
    _bits: int
    _data: memoryview

    def decode(self) -> "npt.NDArray[np.float32]":
        """Returns the mean of all channels, [num_samples]."""
        import numpy as np

        width = self._bits // 8
        if self._is_float:
            with np.errstate(over="ignore"):
                values = np.frombuffer(self._data, f"<f{width}").astype(np.float32)
        elif width == 1:
            values = np.frombuffer(self._data, np.uint8).astype(np.float32) - np.float32(128)
            values *= np.float32(2**-7)
        elif width == 3:
            wide = np.zeros((len(self._data) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(self._data, np.uint8).reshape(-1, 3)
            values = (wide.view("<i4")[:, 0] >> 8).astype(np.float32) * np.float32(2**-23)
        else:
            scale = np.float32(2.0 ** (1 - self._bits))
            values = np.frombuffer(self._data, f"<i{width}").astype(np.float32) * scale
        return mean_of_channels(values.reshape(-1, self.channels))


def mean_of_channels(samples: "npt.NDArray[np.float32]") -> "npt.NDArray[np.float32]":
    """[n, channels] -> [n], added one channel after another."""
    total = samples[:, 0]
    for channel in range(1, samples.shape[1]):
        total = total + samples[:, channel]
    return total if samples.shape[1] == 1 else total / samples.dtype.type(samples.shape[1])


def read_wav(data: bytes) -> WavFile:
    """Reads the header of a file that begins as WAV does. Raises AudioProblem."""
    whole, place, form = memoryview(data), 12, None
    for _ in range(_MOST_CHUNKS):
        if place + 8 > len(whole):
            break
        name, size = bytes(whole[place : place + 4]), struct.unpack_from("<I", whole, place + 4)[0]
        place += 8
        if name == b"fmt ":
            form = _read_form(whole[place : place + size], size)
        elif name == b"data":
            if form is None:
                raise AudioProblem(DAMAGED)
            return _read_data(form, whole[place:], size)
        place += size + size % 2
    raise AudioProblem(DAMAGED)


def _read_form(chunk: memoryview, size: int) -> tuple[int, int, int, int]:
    """Returns the tag, channels, rate and bits."""
    if len(chunk) < max(16, min(size, 40)):
        raise AudioProblem(DAMAGED)
    tag, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 40 and chunk[26:40] == _SUBFORMAT:
        (tag,) = struct.unpack_from("<H", chunk, 24)
    if bits not in _BITS.get(tag, ()):
        raise AudioProblem(f"has samples of the kind {tag} with {bits} bits, which is not supported")
    if not 1 <= channels <= CHANNELS:
        raise AudioProblem(f"has {channels} channels, not 1 to {CHANNELS}")
    if block * 8 != channels * bits:
        raise AudioProblem(DAMAGED)
    return tag, channels, rate, bits


def _read_data(form: tuple[int, int, int, int], rest: memoryview, size: int) -> WavFile:
    tag, channels, rate, bits = form
    block = channels * bits // 8
    if size == _STREAMED:
        size = len(rest) - len(rest) % block
    if size > len(rest) or size % block:
        raise AudioProblem(DAMAGED)
    return WavFile(rate, channels, size // block, tag == _FLOAT, bits, rest[:size])
