"""What hashes of blocks are keyed by (prefix_cache.py): a secret of the worker's start, or what
--prefix-cache-key and the model give, so that services with one key give equal prefixes equal hashes.

    no key    random, new with each start of a worker; a core that adopts a worker goes on with that one's
    a key     H(key, digest of the checkpoint, whatever else decides on keys and values, block size)

So with a key, equal hashes mean equal bytes in the blocks of any two engines (kv_transfer/).
"""

from hashlib import blake2b
from pathlib import Path

from pagewire.errors import StartupError
from pagewire.host.file_watch import exposure, read_small
from pagewire.internal.v1.worker_pb2 import Initialize, Ready

FLAG = "--prefix-cache-key"
LEAST_BYTES = 32
_REMEDY = f"make one: (umask 077; openssl rand -hex {LEAST_BYTES} > FILE)"


def read_key(path: str) -> bytes:
    """Returns what a key file gives to a worker: a digest. Raises StartupError."""
    try:
        how, content = exposure(Path(path), 0o077), read_small(Path(path)).strip()
    except OSError as error:
        raise _refused(f"{path}: {error.strerror or type(error).__name__}", _REMEDY) from error
    if how:
        raise _refused(f"others may read {path}: {how}", f"chown it, or chmod 600 {path}")
    if len(content) < LEAST_BYTES:
        raise _refused(f"{path} has {len(content)} bytes, fewer than {LEAST_BYTES}", _REMEDY)
    return blake2b(content, digest_size=32).digest()


def hash_secret(initialize: Initialize, ready: Ready) -> bytes:
    """Returns what the root of each chain of hashes is keyed by."""
    if not initialize.cache_key:
        return ready.kept_cache.secret or initialize.cache_secret
    model = ready.model
    facts = (
        *(model.architecture, model.implementation, model.vocab_size, model.weight_bytes),
        *(model.dtype, model.quantization, model.kv_cache_dtype, model.arithmetic, initialize.block_size),
        *(ready.weights_digest, initialize.config_overrides),
    )
    return blake2b(repr(facts).encode(), digest_size=32, key=initialize.cache_key).digest()


def _refused(why: str, todo: str) -> StartupError:
    return StartupError(f"cannot use {FLAG}", why, todo)
