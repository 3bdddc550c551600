"""Resamples sounds to the rate that a model hears.

    y[m] = sum over j of x[j] * h[m * down + half - j * up]

h is a low pass of 2 * half + 1 values, a sinc in Kaiser's window (beta 5), where half = 10 * max(up, down):
the filter of scipy.signal.resample_poly. Its products are added one after another, in float64, so that no
library divides them among threads.
"""

from math import gcd

import numpy as np
import numpy.typing as npt

_FASTEST, _MOST_FACTOR = 192000, 640
"""Of rates, and of `up` and `down`: 16,000 Hz are made of all rates that devices have."""
_WIDTH, _BETA = 10, 5.0
_BLOCK = 1 << 14
"""Values that are computed at once, about."""


def can_resample(rate: int, wanted: int) -> bool:
    """Returns whether one rate is made of the other. They are in Hz."""
    return 1 <= rate <= _FASTEST and max(factors(rate, wanted)) <= _MOST_FACTOR


def factors(rate: int, wanted: int) -> tuple[int, int]:
    """Returns `up` and `down` in lowest terms, of rates in Hz."""
    common = gcd(rate, wanted)
    return wanted // common, rate // common


def num_resampled(count: int, rate: int, wanted: int) -> int:
    """Returns how many samples become of so many."""
    up, down = factors(rate, wanted)
    return -(-count * up // down)


def resampled(samples: npt.NDArray[np.float32], rate: int, wanted: int) -> npt.NDArray[np.float32]:
    """[n] -> [num_resampled(n)]."""
    up, down = factors(rate, wanted)
    if up == down:
        return samples
    half, count = _WIDTH * max(up, down), num_resampled(len(samples), rate, wanted)
    # Outputs r, r + up, .. have the same part of h, and begin at inputs that are `down` apart.
    ends = np.arange(up) * down + half
    taps = 2 * half // up + 1
    number = ends % up + up * np.arange(taps)[:, None]  # [taps, up], of h
    weights = np.append(_low_pass(up, down, half), 0.0)[np.minimum(number, 2 * half + 1)]
    newest = ends // up + taps - 1  # in a row of inputs, before which there are taps - 1 others
    rows, width = -(-count // up), int(newest.max()) + 1
    padded = np.zeros((rows - 1) * down + max(width, len(samples) + taps - 1), np.float64)
    padded[taps - 1 : taps - 1 + len(samples)] = samples
    cut = np.lib.stride_tricks.sliding_window_view(padded, width)[::down]
    found, step = np.empty((rows, up), np.float32), max(1, _BLOCK // up)
    for start in range(0, rows, step):
        block = cut[start : min(start + step, rows)]
        total = np.zeros((len(block), up))
        for tap in range(taps):
            total += block[:, newest - tap] * weights[tap]
        found[start : start + len(block)] = total
    return found.reshape(-1)[:count]


def _low_pass(up: int, down: int, half: int) -> npt.NDArray[np.float64]:
    """Returns h, whose sum is `up`."""
    cutoff = 1.0 / max(up, down)
    places = np.arange(-half, half + 1, dtype=np.float64)
    values = np.sinc(cutoff * places) * np.kaiser(2 * half + 1, _BETA)
    scaled: npt.NDArray[np.float64] = values / values.sum() * up
    return scaled
