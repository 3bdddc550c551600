"""Sounds for tests, and their files."""

import struct

import numpy as np
import numpy.typing as npt

RATE = 16000
Samples = npt.NDArray[np.float32]


def sound(seconds: float, number: int = 0, rate: int = RATE) -> Samples:
    """Returns a chord with noise that fades, [n], of values that 16 bits hold."""
    time, random = np.arange(int(seconds * rate)) / rate, np.random.default_rng(number)
    tones = sum(np.sin(2 * np.pi * (220 + 137 * number) * k * time) / k for k in (1, 2, 5))
    wave = 0.2 * np.exp(-time) * (tones + random.normal(0, 0.3, len(time)))
    return (np.round(wave.clip(-1, 1) * 32767) / 32768).astype(np.float32)


def chunk(name: bytes, data: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(data) if size is None else size) + data + b"\0" * (len(data) % 2)


def form(
    tag: int = 1, channels: int = 1, rate: int = RATE, bits: int = 16, block: int | None = None
) -> bytes:
    """Returns the chunk `fmt `."""
    block = channels * bits // 8 if block is None else block
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits))


def riff(*chunks: bytes) -> bytes:
    data = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(data)) + data


def wav(samples: Samples, rate: int = RATE) -> bytes:
    """Returns a file of 16 bits, [n] or [n, channels]."""
    data = np.round(samples * 32768).astype("<i2").tobytes()
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    return riff(form(channels=channels, rate=rate), chunk(b"data", data))
