"""Puts the sounds of a prompt in place of their placeholders."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from frontend.audio.family import AudioFamily
from frontend.audio.files import open_audio
from frontend.audio.flac import FlacFile
from frontend.audio.problem import AudioProblem
from frontend.audio.wav import WavFile
from frontend.errors import InvalidRequest
from frontend.media.expansion import MediaReader, NamedMedia, Prepared
from frontend.media.files import file_of
from frontend.text.tokenizer import Tokenizer
from pagewire.internal.v1 import engine_pb2
from pagewire.limits import MAX_MEDIA_SECONDS
from pagewire.media import media_digest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TOO_LARGE = "takes too much memory to decode"


class AudioReader(MediaReader):
    """The sounds of a model."""

    part_type = "audio"

    def __init__(self, family: AudioFamily, tokenizer: Tokenizer) -> None:
        """Raises NotServed where the vocabulary has no placeholder."""
        super().__init__(family.placeholder, tokenizer)
        self._family = family

    def prepare(self, media: NamedMedia, path: str) -> Iterator[Prepared]:
        # Nothing here multiplies matrices; the library that would takes memory for each of its threads.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        rate, opened, num_samples = self._family.features.rate, list[tuple[str, WavFile | FlacFile]](), 0
        for where, each in media:
            try:
                file = open_audio(file_of(each))
                num_samples += self._num_heard(file)
            except AudioProblem as error:
                raise InvalidRequest({where: str(error)}) from error
            if num_samples > MAX_MEDIA_SECONDS * rate:
                problem = f"is one too many: sounds may have {MAX_MEDIA_SECONDS} s in all"
                raise InvalidRequest({where: problem})
            opened.append((where, file))
        return (self._prepared(*each) for each in opened)

    def _num_heard(self, file: WavFile | FlacFile) -> int:
        """Returns how many samples the model hears of a file, by its header. Raises AudioProblem."""
        from frontend.audio.resample import can_resample, num_resampled

        family = self._family
        rate, most = family.features.rate, family.most_samples
        if not can_resample(file.rate, rate):
            raise AudioProblem(f"has {file.rate} samples a second, a rate of which {rate} are not made")
        count = num_resampled(file.num_samples, file.rate, rate)
        if count < family.least_samples:
            raise AudioProblem(f"has {count / rate:.4f} s, too few to hear")
        if most is not None and count > most:
            raise AudioProblem(f"has {count / rate:.2f} s, and the model hears {most / rate:g} s at once")
        return count

    def _prepared(self, path: str, file: WavFile | FlacFile) -> Prepared:
        from frontend.audio.resample import resampled

        try:
            samples = resampled(_finite(file.decode()), file.rate, self._family.features.rate)
            heard = self._family.hear(samples)
            items = [_item(features) for features in heard.items]
        except AudioProblem as error:
            raise InvalidRequest({path: str(error)}) from error
        except MemoryError as error:
            raise InvalidRequest({path: TOO_LARGE}) from error
        return Prepared(items, heard.pieces)


_LOUDEST = 1e6
"""Of a sample, whose full scale is 1: spectra stay far from infinity."""


def _finite(samples: "npt.NDArray[np.float32]") -> "npt.NDArray[np.float32]":
    """Raises AudioProblem for samples that are none."""
    if not (abs(samples) <= _LOUDEST).all():
        raise AudioProblem("has samples that are not finite, or far from -1 to 1")
    return samples


def _item(features: "npt.NDArray[np.float32]") -> engine_pb2.MediaItem:
    kind, data, shape = engine_pb2.MEDIA_KIND_AUDIO, features.astype("<f4").tobytes(), features.shape
    return engine_pb2.MediaItem(kind=kind, shape=shape, data=data, digest=media_digest(kind, shape, data))
