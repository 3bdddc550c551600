"""A digest of all bytes of a checkpoint, so that engines know whether they have the same weights."""

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pagewire.internal.v1 import worker_pb2

PIECE_BYTES = 64 << 20
"""Hashed at a time, by one thread."""
MOST_THREADS = 8
_PATTERNS = "*.json", "*.safetensors", "*.py"
"""Files of a folder that decide on keys and values."""


def begin_digest(initialize: worker_pb2.Initialize) -> "Future[bytes] | None":
    """Starts to hash the checkpoint in threads, beside loading. None: nothing needs the digest."""
    if not initialize.cache_key:
        return None
    thread = ThreadPoolExecutor(1, thread_name_prefix="digest")
    seed = str(initialize.seed) if initialize.load_format == "dummy" else ""
    digest = thread.submit(weights_digest, Path(initialize.model_path), seed)
    thread.shutdown(wait=False)
    return digest


def weights_digest(path: Path, seed: str = "") -> bytes:
    """Returns the digest of a GGUF file, or of the files of a folder. seed: of random weights; "": there are
    none. Raises OSError."""
    files = [path] if path.is_file() else sorted({file for each in _PATTERNS for file in path.glob(each)})
    pieces = [(file, at) for file in files for at in range(0, file.stat().st_size, PIECE_BYTES)]
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as threads:
        digests = threads.map(_hash_piece, pieces)
        whole = hashlib.sha256(seed.encode())
        for (file, at), digest in zip(pieces, digests, strict=True):
            name = "" if path.is_file() else file.name
            whole.update(f"{name} {at} ".encode() + digest)
    return whole.digest()


def _hash_piece(piece: tuple[Path, int]) -> bytes:
    file, start = piece
    with file.open("rb") as opened:
        opened.seek(start)
        return hashlib.sha256(opened.read(PIECE_BYTES)).digest()
