"""What the encoder has made of items of media, by digest, for rows that have them in place of tokens.

The core says what is encoded and what is forgotten (StepPlan), and mirrors both. Vectors are a function of
weights and item: they are the same whenever an item is encoded.
"""

from collections.abc import Callable

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.media import DIGEST_SIZE
from worker.step.rows import PlanError, column, require

Encode = Callable[[torch.Tensor], torch.Tensor]
"""[height, width, 3] or [frames, height, width, 3] uint8 -> [n, D * E], of the model's dtype and on its
device; n is 0 where the encoder does not take an image of this shape."""


class EncodedItems:
    """The items that are kept."""

    def __init__(self, encode: Encode | None, vectors_per_position: int = 1) -> None:
        """encode: None where the model has no encoder. vectors_per_position: D."""
        self._encode, self.vectors_per_position = encode, vectors_per_position
        self._kept: dict[bytes, torch.Tensor] = {}  # [n, D * E] each

    def follow(self, plan: worker_pb2.StepPlan) -> None:
        """Forgets and encodes what a plan says. Raises PlanError."""
        for digest in _digests(plan.forgotten_media):
            require(self._kept.pop(digest, None) is not None, "an item that is not kept is forgotten")
        for item in plan.encode:
            if self._encode is None:
                raise PlanError("an item is to be encoded, and the model has no encoder")
            require(len(item.digest) == DIGEST_SIZE, f"a digest has {len(item.digest)} bytes")
            require(item.digest not in self._kept, "an item that is kept is encoded")
            vectors = self._encode(_pixels(item))
            self._kept[item.digest] = vectors if vectors.isfinite().all() else vectors[:0]

    def forget_all(self) -> None:
        """Forgets all items, for a core that knows of none."""
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, digest: bytes) -> torch.Tensor:
        """Returns the vectors of an item, [n, D * E]; none where they are not finite. Raises PlanError where
        it is not kept."""
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


def _digests(data: bytes) -> list[bytes]:
    require(len(data) % DIGEST_SIZE == 0, "forgotten_media is no list of digests")
    return [data[start : start + DIGEST_SIZE] for start in range(0, len(data), DIGEST_SIZE)]
