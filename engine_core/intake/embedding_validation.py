"""Values in place of tokens of a prompt: whether they fit it, and what the prefix cache knows of them."""

from hashlib import blake2b

from engine_core.context import Limits
from engine_core.errors import Refused
from engine_core.intake.positions import read_positions
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.limits import EMBEDDING_DTYPES

DIGEST_BYTES = 16


def check_embeddings(message: AddRequest, prompt_len: int, limits: Limits) -> dict[int, bytes]:
    """Returns the digest of the value at each position that has one, for Request.content_hashes. Frontends
    check that values are finite. Raises Refused."""
    if not message.HasField("embeddings"):
        return {}
    given, path, size = message.embeddings, "prompt.embeddings", limits.input_embedding_size
    if not size:
        raise Refused(path, "are not served: the engine takes token ids alone", "FEATURE_UNSUPPORTED")
    if given.dtype not in EMBEDDING_DTYPES:
        raise Refused(f"{path}.dtype", f"must be {', '.join(EMBEDDING_DTYPES)}")
    positions = read_positions(path, given.positions, prompt_len)
    width = EMBEDDING_DTYPES[given.dtype] * size
    values = given.values
    if len(values) != len(positions) * width:
        problem = f"must be {len(positions)} values of {size} elements, not {len(values)} bytes"
        raise Refused(f"{path}.data", problem)
    if message.HasField("prompt_logprobs"):
        raise Refused("output.prompt_logprobs", f"cannot be combined with {path}: they are of token ids")
    return {
        position: _digest(given.dtype, values[at * width : (at + 1) * width])
        for at, position in enumerate(positions)
    }


def _digest(dtype: str, value: bytes) -> bytes:
    return blake2b(value, digest_size=DIGEST_BYTES, person=dtype.encode()).digest()
