"""What the encoder has made of items of media, by digest, for rows that have them in place of tokens.

The core says what is encoded and what is forgotten (StepPlan), and mirrors both. Vectors are a function of
weights and item: they are the same whenever an item is encoded.
"""

import logging
from collections.abc import Callable

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.media import DIGEST_SIZE
from worker.step.exhaustion import is_out_of_memory
from worker.step.rows import PlanError, column, require

log = logging.getLogger(__name__)

Encode = Callable[[torch.Tensor], torch.Tensor]
"""What an item has -> [n, D * E], of the model's dtype and on its device; n is 0 where the encoder does not
take an item of this size.

[height, width, 3] uint8             of an image
[frames, height, width, 3] uint8     of a video
[frames, bins] float32               of a sound
"""


class EncodedItems:
    """The items that are kept."""

    def __init__(self, encode: Encode | None, vectors_per_position: int = 1, is_audio: bool = False) -> None:
        """encode: None where the model has no encoder. vectors_per_position: D. is_audio: items are sounds,
        not images."""
        self._encode, self.vectors_per_position = encode, vectors_per_position
        self._read = _spectrogram if is_audio else _pixels
        self._dtype = torch.float32 if is_audio else torch.uint8
        self._kept: dict[bytes, torch.Tensor] = {}  # [n, D * E] each

    def follow(self, plan: worker_pb2.StepPlan) -> bool:
        """Forgets and encodes what a plan says. Returns whether memory has sufficed. Raises PlanError."""
        suffices = True
        for digest in _digests(plan.forgotten_media):
            require(self._kept.pop(digest, None) is not None, "an item that is not kept is forgotten")
        for item in plan.encode:
            if self._encode is None:
                raise PlanError("an item is to be encoded, and the model has no encoder")
            require(len(item.digest) == DIGEST_SIZE, f"a digest has {len(item.digest)} bytes")
            require(item.digest not in self._kept, "an item that is kept is encoded")
            found = self._vectors(item)
            suffices &= found is not None
            self._kept[item.digest] = self._none(item) if found is None else found
        return suffices

    def _vectors(self, item: engine_pb2.MediaItem) -> torch.Tensor | None:
        """Returns the vectors of an item, none of them where one is not finite. None: memory does not
        suffice."""
        assert self._encode is not None
        try:
            found = self._encode(self._read(item))
            return found if found.isfinite().all() else found[:0]
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        shape = " x ".join(map(str, item.shape))
        log.warning("memory does not suffice to encode an item of the shape %s", shape)
        return None

    def _none(self, item: engine_pb2.MediaItem) -> torch.Tensor:
        """Returns no vectors, [0, D * E]."""
        assert self._encode is not None
        return self._encode(torch.empty((0, *item.shape[1:]), dtype=self._dtype))

    def forget_all(self) -> None:
        """Forgets all items, for a core that knows of none."""
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, digest: bytes) -> torch.Tensor:
        """Returns the vectors of an item, [n, D * E]; none where it could not be encoded. Raises PlanError
        where it is not kept."""
        found = self._kept.get(digest)
        if found is None:
            raise PlanError("a row computes positions of an item that is not encoded")
        return found


def positions_of(row: int, item: engine_pb2.MediaItem) -> Integers:
    """Returns the positions of an item of a row, [N]. Raises PlanError."""
    require(len(item.digest) == DIGEST_SIZE, f"row {row} has a digest of {len(item.digest)} bytes")
    require(len(item.positions) > 0, f"row {row} has an item of no token")
    return column(item.positions)


def _pixels(item: engine_pb2.MediaItem) -> torch.Tensor:
    """Returns an image [height, width, 3] uint8, or frames [frames, height, width, 3]. Raises PlanError."""
    require(item.kind == engine_pb2.MEDIA_KIND_IMAGE, f"an item of kind {item.kind} is encoded")
    shape = tuple(item.shape)
    fits = len(shape) in (3, 4) and shape[-1] == 3 and min(shape) > 0
    require(fits, f"an image has the shape {list(shape)}")
    require(len(item.data) == int(np.prod(shape)), f"an image of shape {list(shape)} has other data")
    return torch.frombuffer(bytearray(item.data), dtype=torch.uint8).view(shape)


def _spectrogram(item: engine_pb2.MediaItem) -> torch.Tensor:
    """Returns a sound [frames, bins] float32. Raises PlanError."""
    require(item.kind == engine_pb2.MEDIA_KIND_AUDIO, f"an item of kind {item.kind} is encoded")
    shape = tuple(item.shape)
    require(len(shape) == 2 and min(shape) > 0, f"a sound has the shape {list(shape)}")
    require(len(item.data) == 4 * int(np.prod(shape)), f"a sound of shape {list(shape)} has other data")
    return torch.frombuffer(bytearray(item.data), dtype=torch.float32).view(shape)


def _digests(data: bytes) -> list[bytes]:
    require(len(data) % DIGEST_SIZE == 0, "forgotten_media is no list of digests")
    return [data[start : start + DIGEST_SIZE] for start in range(0, len(data), DIGEST_SIZE)]
