"""Log-mel spectrograms, as transformers' WhisperFeatureExtractor computes them with numpy.

Windows of a clip are transformed, and their powers added up by triangular filters, which stand at equal
distances of Slaney's mel scale. The powers are added one after another, by operations that no library divides
among threads: the result is a function of the clip. transformers adds them in the order of a matrix product:
a few of its values differ in the last bit of float32.
"""

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from frontend.audio.family import Features

Floats = npt.NDArray[np.float64]
_FLOOR = 1e-10
_BLOCK = 1024
"""Frames that are transformed at once."""
_HIGHEST = 8000.0
"""Hz, of the last filter."""


def log_mel(samples: npt.NDArray[np.float32], features: "Features", length: int) -> npt.NDArray[np.float32]:
    """[n] -> [frames, bins]: the spectrogram of samples with silence behind them, `length` in all."""
    size, hop = features.window, features.hop
    margin = size // 2
    padded = np.zeros(length + 2 * margin, np.float32)
    padded[margin : margin + len(samples)] = samples
    padded[:margin] = padded[2 * margin : margin : -1]  # mirrored at both ends
    padded[-margin:] = padded[-margin - 2 : -2 * margin - 2 : -1]
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop][: length // hop]
    hann = np.hanning(size + 1)[:-1]
    found = np.empty((len(frames), features.bins), np.float32)
    for start in range(0, len(frames), _BLOCK):
        block = frames[start : start + _BLOCK].astype(np.float64) * hann
        spectrum = np.fft.rfft(block).astype(np.complex64).astype(np.complex128)
        powers = np.ascontiguousarray((np.abs(spectrum) ** 2.0).T)
        for number, mel in enumerate(_filtered(powers, features)):
            found[start : start + len(block), number] = np.log10(np.maximum(_FLOOR, mel))
    np.maximum(found, found.max() - np.float32(8), out=found)
    found += np.float32(4)
    found /= np.float32(4)
    return found


def _filtered(powers: Floats, features: "Features") -> Iterator[Floats]:
    """[frequencies, frames] -> what each filter lets through, [frames]."""
    for weights in mel_filters(1 + features.window // 2, features.bins, features.rate):
        total = np.zeros(powers.shape[1])
        for frequency in np.flatnonzero(weights).tolist():
            total = total + weights[frequency] * powers[frequency]
        yield total


@cache
def mel_filters(frequencies: int, bins: int, rate: int) -> Floats:
    """Returns the weights of triangular filters of equal area, [bins, frequencies]."""
    edges = _hertz(np.linspace(0.0, _mels(_HIGHEST), bins + 2))
    distances = edges[None] - np.linspace(0, rate // 2, frequencies)[:, None]
    widths = np.diff(edges)
    rising, falling = -distances[:, :-2] / widths[:-1], distances[:, 2:] / widths[1:]
    areas = 2.0 / (edges[2:] - edges[:-2])
    return np.ascontiguousarray((np.maximum(0.0, np.minimum(rising, falling)) * areas).T)


_LINEAR, _STEP = 1000.0, 27.0 / np.log(6.4)
"""Hz up to which mels are linear; mels by the logarithm of what is above."""


def _mels(hertz: float) -> float:
    return 3.0 * hertz / 200.0 if hertz < _LINEAR else 15.0 + np.log(hertz / _LINEAR) * _STEP


def _hertz(mels: Floats) -> Floats:
    above = _LINEAR * np.exp((np.log(6.4) / 27.0) * (mels - 15.0))
    return np.where(mels >= 15.0, above, 200.0 * mels / 3.0)
