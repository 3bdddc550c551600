"""The files of sounds: which formats are read, by what the files themselves say."""

from frontend.audio.flac import FlacFile, read_flac
from frontend.audio.problem import AudioProblem
from frontend.audio.wav import WavFile, read_wav

FORMATS = "WAV, FLAC"
_OTHERS = {
    b"ID3": "MP3",
    b"\xff\xfb": "MP3",
    b"\xff\xf3": "MP3",
    b"\xff\xf2": "MP3",
    b"\xff\xf1": "AAC",
    b"\xff\xf9": "AAC",
    b"OggS": "Ogg",
    b"FORM": "AIFF",
    b"RF64": "RF64",
    b"\x1aE\xdf\xa3": "WebM",
}
"""First bytes -> formats that are refused by name."""


def open_audio(data: bytes) -> WavFile | FlacFile:
    """Reads the header of a file, whose samples are not decoded yet. Raises AudioProblem."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return read_wav(data)
    if data[:4] == b"fLaC":
        return read_flac(data)
    name = next((name for begin, name in _OTHERS.items() if data.startswith(begin)), "")
    name = "MP4" if data[4:8] == b"ftyp" else name
    if name:
        raise AudioProblem(f"is {name}, which is not decoded here: send {FORMATS}")
    raise AudioProblem(f"is not a file that can be read as {FORMATS}")
