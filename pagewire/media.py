"""The digest of what a model's encoder takes at once: an image, or a tile of one."""

import hashlib
import struct
from collections.abc import Sequence

DIGEST_SIZE = 32


def media_digest(kind: int, shape: Sequence[int], data: bytes) -> bytes:
    """Returns MediaItem.digest [32 bytes]: blake2b of kind and shape, as little-endian uint32, and elements.

    kind: a MediaKind, which says how many dimensions `shape` has. data: the elements, row-major.
    """
    digest = hashlib.blake2b(struct.pack(f"<{1 + len(shape)}I", kind, *shape), digest_size=DIGEST_SIZE)
    digest.update(data)
    return digest.digest()
