"""Sounds of other rates: those of scipy.signal.resample_poly."""

import numpy as np
import pytest
from scipy.signal import resample_poly

from frontend.audio.resample import factors, num_resampled, resampled
from tests.frontend.audio.sounds import sound

RATES = [8000, 11025, 12000, 22050, 24000, 32000, 44100, 48000, 88200, 96000, 176400, 192000]


@pytest.mark.parametrize("rate", RATES)
def test_resampled_as_scipy_does(rate: int):
    for seconds in (0.3, 0.001):
        samples = sound(seconds, rate=rate)
        up, down = factors(rate, 16000)
        expected = resample_poly(samples.astype(np.float64), up, down)
        found = resampled(samples, rate, 16000)
        assert found.dtype == np.float32
        assert len(found) == len(expected) == num_resampled(len(samples), rate, 16000)
        assert np.abs(found - expected).max() < 1e-7


def test_a_tone_stays_and_what_is_above_half_the_rate_goes():
    time = np.arange(48000) / 48000
    tone, high = (np.sin(2 * np.pi * hertz * time).astype(np.float32) for hertz in (440, 12000))
    middle = slice(1000, -1000)
    expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    assert np.abs(resampled(tone, 48000, 16000) - expected)[middle].max() < 1e-3
    assert np.abs(resampled(high, 48000, 16000))[middle].max() < 1e-3
    assert resampled(tone, 16000, 16000) is tone
