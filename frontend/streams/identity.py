"""Which request a request is: its id, its seed, and a digest of its content.

A client that does not know what has become of a request submits it again, under the same id, at any frontend.
The same content under the same id is the same request. Its seed is the same too: one that the client leaves
to the server is a function of the id, so that the tokens are those of the first submit in any case.
"""

import secrets
from dataclasses import dataclass
from hashlib import blake2b

from frontend.auth.caller import Caller
from pagewire.v1 import generation_pb2

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """A request's names."""

    request_id: str
    """The client's, or one that the server has drawn."""
    engine_id: str
    """The same, within its tenant."""
    seed: int
    content: bytes
    """Digest of what determines the answer, equal for every attempt; empty: no call can take it over."""
    tenant: str
    """The owner of the request."""


def identify(
    request: generation_pb2.GenerateRequest, caller: Caller, tenant: str, *, is_pooled: bool = False
) -> RequestIdentity:
    """Returns the identity of a validated request. tenant: its owner. is_pooled: it ends with a vector, which
    is sent once: it has no digest."""
    request_id = request.request_id or secrets.token_hex(16)
    engine_id = caller.scope(request_id)
    seed = request.sampling.seed if request.sampling.HasField("seed") else _seed_of(request, engine_id)
    content = b"" if is_pooled else _digest(request, seed, tenant)
    return RequestIdentity(request_id, engine_id, seed, content, tenant)


def _seed_of(request: generation_pb2.GenerateRequest, engine_id: str) -> int:
    if not request.request_id:
        return secrets.randbits(64)
    return int.from_bytes(blake2b(engine_id.encode(), digest_size=8, person=b"seed").digest(), "little")


def _digest(request: generation_pb2.GenerateRequest, seed: int, tenant: str) -> bytes:
    """Leaves out what differs between attempts: what was delivered, the time that is left, the place."""
    content = generation_pb2.GenerateRequest()
    content.CopyFrom(request)
    for name in ("request_id", "continuation", "routing", "speculation"):
        content.ClearField(name)
    content.sampling.seed, content.tenant = seed, tenant
    content.stopping.ClearField("time_limit")
    content.stopping.SetInParent()
    return blake2b(content.SerializeToString(deterministic=True), digest_size=DIGEST_BYTES).digest()
