"""Files of sounds: what they hold, and what is refused of those that lie."""

import io
import struct
import sys

import numpy as np
import pytest

from frontend.audio.files import open_audio
from frontend.audio.problem import AudioProblem
from tests.frontend.audio.sounds import RATE, chunk, form, riff, sound, wav

VALUES = np.array([0, 1, -1, 0.5, -0.25, 0.75], np.float32)


def of_bits(tag: int, bits: int) -> bytes:
    if tag == 3:
        return VALUES.astype(f"<f{bits // 8}").tobytes()
    whole = np.clip(
        np.round(VALUES.astype(np.float64) * 2 ** (bits - 1)), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    )
    if bits == 8:
        return (whole + 128).astype(np.uint8).tobytes()
    return whole.astype("<i4").view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()


@pytest.mark.parametrize(("tag", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_samples_of_every_kind(tag: int, bits: int):
    file = open_audio(riff(form(tag, bits=bits), chunk(b"LIST", b"odd"), chunk(b"data", of_bits(tag, bits))))
    assert (file.rate, file.channels, file.num_samples) == (RATE, 1, len(VALUES))
    step = 0 if tag == 3 else 2.0 ** (1 - bits)
    assert np.abs(file.decode() - VALUES).max() <= step
    assert file.decode().dtype == np.float32


def test_channels_become_their_mean():
    left, right = sound(0.1, 0), sound(0.1, 1)
    decoded = open_audio(wav(np.stack((left, right), 1))).decode()
    assert np.array_equal(decoded, (left + right) / np.float32(2))


def test_the_extensible_form_and_streams_of_unknown_size():
    samples, data = sound(0.05), wav(sound(0.05))[44:]
    guid = (
        struct.pack("<HHI", 22, 16, 4) + struct.pack("<H", 1) + bytes.fromhex("000000001000800000aa00389b71")
    )
    head = chunk(b"fmt ", form(0xFFFE)[8:] + guid)
    assert np.array_equal(open_audio(riff(head, chunk(b"data", data))).decode(), samples)
    streamed = open_audio(riff(form(), chunk(b"data", data + b"\1", 0xFFFFFFFF)[:-1]))
    assert np.array_equal(streamed.decode(), samples)


DATA = chunk(b"data", bytes(64))
HOSTILE = {
    "nothing": (b"", "not a file"),
    "text": (b"hello, world", "not a file"),
    "a PNG": (b"\x89PNG\r\n\x1a\n" + bytes(64), "not a file"),
    "MP3": (b"ID3\4" + bytes(64), "is MP3"),
    "MP3 without tags": (b"\xff\xfb\x90\0" + bytes(64), "is MP3"),
    "Ogg": (b"OggS" + bytes(64), "is Ogg"),
    "MP4": (b"\0\0\0\x20ftypM4A " + bytes(64), "is MP4"),
    "a header alone": (riff(), "damaged"),
    "no data": (riff(form()), "damaged"),
    "data before its form": (riff(DATA, form()), "damaged"),
    "a form that is cut": (riff(form())[:30], "damaged"),
    "data that is cut": (riff(form(), chunk(b"data", bytes(64), 66)), "damaged"),
    "a bomb": (riff(form(), chunk(b"data", bytes(64), 0xFFFFFFFE)), "damaged"),
    "a part of a sample": (riff(form(bits=32), chunk(b"data", bytes(66))), "damaged"),
    "no channels": (riff(form(channels=0), DATA), "has 0 channels"),
    "many channels": (riff(form(channels=9), DATA), "has 9 channels"),
    "blocks that do not fit": (riff(form(block=3), DATA), "damaged"),
    "ADPCM": (riff(form(2, bits=4), DATA), "of the kind 2 with 4 bits"),
    "mu-law": (riff(form(7, bits=8), DATA), "of the kind 7 with 8 bits"),
    "half floats": (riff(form(3, bits=16), DATA), "of the kind 3 with 16 bits"),
    "chunks without end": (riff(chunk(b"JUNK", b"") * 5000, form(), DATA), "damaged"),
    "a chunk beyond the end": (riff(chunk(b"JUNK", b"", 0xFFFFFFFF), form(), DATA), "damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_are_refused_by_their_headers(name: str):
    data, problem = HOSTILE[name]
    with pytest.raises(AudioProblem, match=problem):
        open_audio(data)


def test_every_cut_and_every_changed_byte_is_a_sound_or_a_problem():
    whole = wav(sound(0.004))
    for place in range(len(whole)):
        for data in (whole[:place], whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]):
            try:
                assert len((file := open_audio(data)).decode()) == file.num_samples <= len(whole)
            except AudioProblem:
                continue


def flac_of(samples: np.ndarray, rate: int = RATE) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def test_flac_has_the_samples_of_wav():
    samples = np.stack((sound(5, 0), sound(5, 1)), 1)
    file = open_audio(flac_of(samples))
    assert (file.rate, file.channels, file.num_samples) == (RATE, 2, 5 * RATE)
    assert np.array_equal(file.decode(), open_audio(wav(samples)).decode())


def test_flac_that_lies_is_damaged():
    whole = flac_of(sound(0.5))
    packed = int.from_bytes(whole[18:26])

    def with_count(count: int) -> bytes:
        return whole[:18] + (packed >> 36 << 36 | count).to_bytes(8) + whole[26:]

    with pytest.raises(AudioProblem, match="does not say"):
        open_audio(with_count(0))
    assert len(open_audio(with_count(7999)).decode()) == 7999  # what is behind them is not read
    for data in (with_count(8001), with_count(480000), whole[:500], whole[:42]):
        with pytest.raises(AudioProblem, match="damaged"):
            open_audio(data).decode()
    for data in (whole[:41], b"fLaC" + b"\1" + whole[5:], b"fLaC" + bytes(64)):
        with pytest.raises(AudioProblem, match="damaged"):
            open_audio(data)


def test_flac_without_its_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(AudioProblem, match=r"pip install 'pagewire\[audio\]'"):
        open_audio(b"fLaC" + bytes(64))
