"""Spectrograms: those of transformers' WhisperFeatureExtractor, as it computes them with numpy."""

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from frontend.audio.families import Qwen2Audio, Voxtral
from frontend.audio.family import Features
from frontend.audio.log_mel import log_mel, mel_filters
from frontend.media.family import Settings, Vectors
from tests.frontend.audio.sounds import RATE, sound

EXTRACTOR = WhisperFeatureExtractor(feature_size=128, chunk_length=2)
FEATURES = Features(bins=128, rate=RATE, hop=160, window=400, length=2 * RATE, states=100)
CONFIG = Settings("config.json", {"audio_config": {"hidden_size": 8, "intermediate_size": 32}})


def judged(samples: np.ndarray, length: int) -> np.ndarray:
    padded = np.pad(samples, (0, length - len(samples)))
    found: np.ndarray = EXTRACTOR._np_extract_fbank_features(padded[None], "cpu")[0].T
    return found


def test_filters_are_bit_for_bit_those_of_transformers():
    assert np.array_equal(mel_filters(201, 128, RATE).T, EXTRACTOR.mel_filters)


@pytest.mark.parametrize("seconds", [0.02, 0.5, 1.999, 2, 3.7])
def test_spectrograms_are_those_of_transformers(seconds: float):
    samples = sound(seconds)
    length = -(-len(samples) // FEATURES.length) * FEATURES.length
    found, expected = log_mel(samples, FEATURES, length), judged(samples, length)
    assert found.dtype == np.float32 and found.shape == expected.shape == (length // 160, 128)
    assert (found == expected).mean() > 0.999
    assert np.abs(found - expected).max() <= 2.0**-22


def test_silence_and_full_scale():
    for samples in (np.zeros(1600, np.float32), np.ones(3200, np.float32)):
        found = log_mel(samples, FEATURES, FEATURES.length)
        assert np.isfinite(found).all()
        assert np.abs(found - judged(samples, FEATURES.length)).max() <= 2.0**-22


@pytest.mark.parametrize("count", [321, 800, 1600, 31999, 32000])
def test_qwen2_audio_sends_the_frames_of_its_states(count: int):
    """Their number, and that of vectors, are those of transformers' processor."""
    samples = sound(2)[:count]
    [item], [piece] = (heard := Qwen2Audio(CONFIG, FEATURES).hear(samples)).items, heard.pieces
    frames = EXTRACTOR([samples], sampling_rate=RATE, return_attention_mask=True)["attention_mask"].sum()
    states = (frames - 1) // 2 + 1
    assert piece == Vectors(0, (states - 2) // 2 + 1)
    assert len(item) == min(2 * states + 1, 200) and len(item) >= frames
    assert np.array_equal(item, log_mel(samples, FEATURES, FEATURES.length)[: len(item)])


def test_voxtral_hears_parts_of_full_length():
    samples = np.concatenate((sound(2), 0.001 * sound(1.5, 1)))
    heard = Voxtral(CONFIG, FEATURES).hear(samples)
    assert heard.pieces == [Vectors(0, 25), Vectors(1, 25)]
    assert [item.shape for item in heard.items] == [(200, 128)] * 2
    assert np.abs(np.concatenate(heard.items) - judged(samples, 2 * FEATURES.length)).max() <= 2.0**-22
